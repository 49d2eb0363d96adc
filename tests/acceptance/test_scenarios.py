"""What must hold on every store, where it is tested, and on which stores: the table of contents of this folder.

A test that is marked `every_store` gets a world on a file, on PostgreSQL and on Valkey. What is about a ledger's file
has its counterpart on servers beside it. Heavy repetitions stay with the file, where a start costs least.
"""

from __future__ import annotations

import importlib

import pytest

EVERY, A_FILE, SERVERS = "every store", "a file", "servers"

#: A fact; the test of it, as module.test (in this folder, unless it says another); and the stores it is tested on.
SCENARIOS = [
    (
        "a window is worked on once, however often it is triggered",
        "runs.a_later_trigger_of_a_window_finds_it_done",
        EVERY,
    ),
    ("of forty triggers at once one works", "runs.of_forty_at_once_on_a_fresh_ledger_one_works", EVERY),
    ("a trigger during the run is busy, and recorded", "runs.a_trigger_during_the_run_is_busy_and_is_recorded", EVERY),
    (
        "a command that outlives its wrapper blocks a second start",
        "crashes.a_command_that_outlives_its_killed_wrapper_blocks_a_second_start",
        EVERY,
    ),
    (
        "a crash whose effects may have happened can wait for a person",
        "crashes.a_crash_whose_effects_may_have_happened_is_held_for_a_person",
        EVERY,
    ),
    ("a stop signal has a verdict", "signals.a_stop_signal_reaches_the_command_and_is_its_verdict", EVERY),
    ("what is left behind blocks nothing", "runs.a_left_background_process_is_named_and_blocks_no_window", EVERY),
    ("a crash is seen at once on its host", "crashes.a_killed_attempt_is_taken_over_at_once_on_its_host", EVERY),
    ("elsewhere it is waited for", "crashes.another_host_waits_for_the_lease_of_a_killed_attempt", EVERY),
    ("each attempt has its own story", "runs.each_attempt_keeps_its_own_owner_start_and_end", EVERY),
    ("a job may be longer than its lease", "runs.a_job_longer_than_its_lease_keeps_its_claim", EVERY),
    (
        "a paused attempt that was taken over changes nothing",
        "crashes.a_paused_attempt_that_was_taken_over_changes_nothing",
        EVERY,
    ),
    ("a late failure undoes nothing", "crashes.a_late_failure_does_not_undo_what_another_has_done", EVERY),
    (
        "a failure is tried again until its attempts are used up",
        "outcomes.a_failed_window_is_tried_again_until_its_attempts_are_used_up",
        EVERY,
    ),
    ("and not before its delay", "outcomes.a_failed_window_waits_for_its_retry_delay", EVERY),
    (
        "a declared stop costs no attempt",
        "outcomes.a_declared_exit_code_stops_the_window_and_costs_no_attempt",
        EVERY,
    ),
    (
        "and is resumed after its time",
        "outcomes.a_stopped_window_is_resumed_first_by_the_next_trigger_after_its_time",
        EVERY,
    ),
    (
        "a rate limit holds up every job that uses the same",
        "outcomes.a_closed_gate_holds_up_every_job_that_uses_it_and_nothing_else",
        EVERY,
    ),
    ("exit 0 without the product is not done", "outcomes.an_exit_status_0_without_the_product_is_not_done", EVERY),
    (
        "a lost, emptied, restored or other ledger runs nothing",
        "accept_loss.after_a_loss_is_accepted_no_window_runs_again_that_this_host_remembers",
        EVERY,
    ),
    (
        "a file that is not the ledger it should be runs nothing",
        "stores.a_store_that_is_not_the_ledger_it_should_be_runs_nothing",
        A_FILE,
    ),
    ("a flipped bit makes nothing run again", "stores.no_flipped_bit_makes_a_window_run_again", A_FILE),
    (
        "a place that forgets is refused",
        "stores.a_place_that_is_kept_in_memory_is_refused_by_name_unless_it_is_accepted",
        A_FILE,
    ),
    (
        "a server that is not there runs nothing",
        "server_faults.a_server_that_is_not_there_runs_nothing_and_says_so",
        SERVERS,
    ),
    ("nor one that does not let us in", "server_refusals.a_role_without_the_rights_runs_nothing", SERVERS),
    ("nor one that is read-only", "server_refusals.a_read_only_server_runs_nothing", SERVERS),
    (
        "a disk that fills up makes nothing run again",
        "stores.a_disk_that_fills_up_during_the_work_makes_nothing_run_again",
        A_FILE,
    ),
    ("nor does a server without room", "server_refusals.a_server_without_room_runs_nothing", SERVERS),
    (
        "a torn record misleads nobody",
        "journal.torn_at_any_byte_the_last_line_is_passed_over_and_the_next_is_whole",
        EVERY,
    ),
    (
        "a cut line starts no command without a committed claim",
        "server_faults.a_command_never_starts_without_a_committed_claim",
        SERVERS,
    ),
    (
        "a server that comes and goes doubles and loses nothing",
        "server_faults.a_server_that_is_stopped_and_started_every_second_doubles_nothing_and_loses_nothing",
        SERVERS,
    ),
    (
        "a short outage kills no healthy job",
        "server_faults.a_server_that_is_away_for_a_part_of_the_lease_kills_no_healthy_job",
        SERVERS,
    ),
    ("a hostile name is refused", "hostile.a_name_that_needs_quoting_somewhere_is_no_job", EVERY),
    ("or kept as it is", "hostile.a_version_comes_back_as_it_went_in_on_one_line", EVERY),
    ("two jobs do not know each other", "runs.two_jobs_in_one_ledger_have_windows_of_their_own", EVERY),
    ("an instant is understood", "time.every_spelling_of_an_instant_means_the_same_window", EVERY),
    ("or refused", "time.an_instant_that_is_not_one_is_refused_before_anything_is_written", EVERY),
    ("a window is of UTC", "time.midnight_in_tokyo_belongs_to_the_utc_day_before", EVERY),
    ("a timer that jitters loses no day", "time.a_timer_that_jitters_around_midnight_loses_no_day", EVERY),
    ("the slot that was meant counts", "time.the_slot_the_scheduler_meant_counts_and_not_when_it_came", EVERY),
    ("what was missed is caught up", "time.windows_missed_are_caught_up_where_that_is_wanted", EVERY),
    ("a local day has one effect", "time.a_nightly_job_has_one_effect_for_each_local_day", EVERY),
    ("a wrong clock robs nobody", "time.a_live_owner_is_not_robbed_by_a_clock_that_is_wrong", EVERY),
    (
        "and blocks for no longer than a lease",
        "time.a_claim_under_a_clock_of_the_far_future_blocks_no_longer_than_its_lease",
        EVERY,
    ),
    ("other input is a conflict", "receipts.other_input_for_a_done_window_is_a_conflict_and_no_effect", EVERY),
    ("or other work", "receipts.other_input_can_be_other_work_and_the_whole_digest_counts", EVERY),
    ("a probe names what is missing or failed", "tests.test_cli_probe.findings_are_a_line_each_and_exit_one", EVERY),
    (
        "and has nothing to say of a clean ledger",
        "tests.test_cli_probe.a_clean_ledger_is_one_line_and_exit_zero",
        EVERY,
    ),
    (
        "without a ledger every window is missing",
        "tests.test_cli_probe.without_the_ledger_every_expected_window_is_missing",
        EVERY,
    ),
    ("each schedule has its windows", "time.each_kind_of_schedule_has_windows_of_its_own_grain", EVERY),
    (
        "endless output is bounded and changes no verdict",
        "receipts.endless_output_passes_through_in_bounded_memory_and_both_ends_are_kept",
        EVERY,
    ),
    ("nor does trouble with ours", "receipts.trouble_with_our_own_output_changes_no_verdict", EVERY),
    ("a loop around it keeps its input", "runs.a_command_cannot_eat_the_input_of_a_loop_around_it", EVERY),
    ("a receipt says who, what, when and why", "receipts.a_receipt_says_who_what_when_and_why", EVERY),
    (
        "the state is durable before it is told",
        "receipts.the_state_is_on_the_disk_before_the_command_starts_and_before_the_receipt",
        A_FILE,
    ),
    ("one command says whether it ran", "tests.test_cli_probe.the_exit_status_answers_whether_it_ran", EVERY),
    ("what was pruned never runs again", "prune.a_pruned_window_is_never_run_again", EVERY),
    (
        "a kill at any place is a crash like any other",
        "failpoints.after_a_kill_the_next_triggers_do_what_is_still_to_be_done",
        EVERY,
    ),
    (
        "a storm of kills lets no two attempts meet",
        "storm.in_a_storm_of_kills_attempts_follow_each_other_and_never_meet",
        EVERY,
    ),
    ("what a job emits goes out with its outcome", "emit.what_a_job_emits_goes_out_when_it_is_done", EVERY),
    ("or not at all", "emit.a_job_that_fails_sends_nothing_and_says_how_much", EVERY),
    (
        "message and outcome are one commit",
        "delivery_cases.a_message_is_there_exactly_when_its_window_is_done_wherever_the_run_was_killed",
        EVERY,
    ),
    (
        "what a run has lost its claim for is not sent",
        "items.an_attempt_that_was_paused_past_its_lease_emits_nothing",
        EVERY,
    ),
    (
        "work with nothing to send where it should is not done",
        "delivery_cases.work_that_has_nothing_to_send_where_it_should_is_not_done",
        EVERY,
    ),
    (
        "an item is marked with its message",
        "items.killed_at_item_60_every_message_is_there_once_and_nothing_is_paid_for_again",
        EVERY,
    ),
    ("and so is a step", "step.a_step_that_is_done_is_not_run_again_and_prints_the_same", EVERY),
    (
        "work is tried again, a message is not sent again",
        "delivery_cases.a_job_that_is_tried_again_and_run_again_sends_its_message_once",
        EVERY,
    ),
    (
        "delivered again and again it goes out once",
        "delivery_cases.delivered_again_and_again_a_message_goes_out_once",
        EVERY,
    ),
    (
        "of two deliverers one sends a message",
        "delivery_cases.of_two_deliverers_at_once_one_sends_each_message_time_after_time",
        EVERY,
    ),
    ("and of six, killed again and again", "delivery_crashes.deliverers_that_are_killed_on_every_store", EVERY),
    (
        "killed before the mark, a message is in doubt",
        "delivery_cases.killed_before_the_mark_a_message_is_in_doubt_and_goes_out_again_only_when_a_person_says_so",
        EVERY,
    ),
    (
        "and sent again to a receiver that dedupes",
        "delivery_cases.killed_before_the_mark_a_receiver_that_dedupes_gets_the_key_again_and_counts_one",
        EVERY,
    ),
    (
        "a lost answer is no reason to send twice",
        "delivery_cases.an_answer_that_is_lost_makes_no_second_message_where_nobody_dedupes",
        EVERY,
    ),
    (
        "unless the receiver dedupes",
        "delivery_cases.an_answer_that_is_lost_is_asked_for_again_under_the_same_key_where_the_receiver_dedupes",
        EVERY,
    ),
    (
        "a deliverer's death forgets no key",
        "delivery_cases.a_key_that_was_sent_goes_out_no_second_time_though_its_deliverer_died_and_others_emit_it_again",
        EVERY,
    ),
    (
        "two jobs answer the same once",
        "delivery_cases.of_two_jobs_that_answer_the_same_one_answers_and_the_other_learns_whose_answer_stands",
        EVERY,
    ),
    ("a poisoned message is parked", "delivery_cases.a_message_that_is_refused_is_parked_and_the_others_go_out", EVERY),
    (
        "many of them hold nothing up",
        "delivery_cases.behind_a_hundred_that_always_fail_a_good_one_goes_out_at_once_and_they_end_after_their_attempts",
        EVERY,
    ),
    (
        "a key is remembered for longer than its message",
        "delivery_cases.a_key_whose_message_was_pruned_is_not_sent_again",
        EVERY,
    ),
    (
        "of a batch that died, every comment is there once",
        "delivery_whole.killed_at_item_60_of_100_with_its_deliverers_every_comment_is_there_once_in_the_end",
        EVERY,
    ),
    (
        "a gateway's 503 makes nothing happen twice",
        "delivery_whole.a_gateway_that_answers_503_after_forwarding_makes_nothing_happen_twice",
        A_FILE,
    ),
    (
        "a Retry-After outlasts the run",
        "delivery_whole.a_retry_after_longer_than_the_run_is_kept_to_by_the_runs_after_it",
        EVERY,
    ),
    ("deliverers share one rate", "delivery_whole.three_deliverers_keep_to_one_rate_together", EVERY),
    ("sent is what the receiver has said", "delivery_cases.without_the_receivers_word_for_it_nothing_is_sent", EVERY),
    ("and what it said is kept", "delivery_cases.what_the_receiver_said_is_kept", EVERY),
    (
        "a server that is away loses no answer",
        "delivery_faults.a_server_that_is_killed_while_a_message_is_on_its_way_learns_of_it_when_it_is_back",
        SERVERS,
    ),
    (
        "a line that is cut sends nothing twice",
        "delivery_faults.a_line_that_is_cut_anywhere_makes_no_message_go_out_twice",
        SERVERS,
    ),
    (
        "a store that is locked loses no answer",
        "deliver.a_store_that_is_locked_when_the_answer_comes_makes_no_message_go_out_twice",
        A_FILE,
    ),
    (
        "in a ledger that went back nothing is sent on trust",
        "messages_after_loss.in_a_ledger_that_went_back_nothing_goes_out_that_may_have_been_sent_since",
        EVERY,
    ),
    ("what is in doubt is listed, worst first", "outbox.the_list_is_of_what_is_not_delivered_the_worst_first", EVERY),
    (
        "a drill rehearses it on the user's own store",
        "drill.everything_holds_and_the_ledger_beside_it_is_not_touched",
        EVERY,
    ),
]


@pytest.mark.parametrize(("test", "stores"), [(test, stores) for _, test, stores in SCENARIOS])
def test_each_scenario_is_tested_on_its_stores(test, stores):
    module, _, name = test.rpartition(".")
    found = importlib.import_module(module if "." in module else f"tests.acceptance.test_{module}")
    marks = [mark.name for mark in getattr(getattr(found, f"test_{name}"), "pytestmark", [])]
    assert ("every_store" in marks) == (stores == EVERY)

//! The conformance suite: the required behaviour of every [`Store`](ringq::store::Store), one file per verb. A case
//! is an async function that gets a fresh [`Fixture`]; its name is a sentence. This file lists every case once, and
//! every store once.

mod adopt;
mod again;
mod ageing;
mod attempts;
mod away;
mod backlog;
mod beat;
mod bytes;
mod checkpoint;
mod claim;
mod conflict;
mod crash_topic;
mod delete;
mod documents;
mod elsewhere;
mod enqueue;
mod events;
mod explain;
mod extend;
mod fence;
mod fixture;
mod full;
mod generations;
mod get;
mod groups;
mod list;
mod orphans;
mod policies;
mod prune;
mod purge;
mod reap;
mod redrive;
mod reschedule;
mod restart;
mod settle;
mod stored_bytes;
mod tidy;
mod together;
mod topics_stats;
mod unclaim;
pub(crate) mod values;

pub(crate) use fixture::{Backend, Fixture, START};
pub(crate) use values::OWNER;
use values::{key, taker};

/// Makes a module `$store` with a test for every case of `$verb { $case … }`. The cases of a section are marked by its
/// attribute.
macro_rules! instantiate {
    ($store:ident, $backend:expr; $($mark:meta: { $($verb:ident { $($case:ident)* })* })*) => {
        mod $store {
            $($(mod $verb {
                use crate::conformance::{self, Backend, Fixture};
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[$mark]
                async fn $case() {
                    if let Some(fixture) = Fixture::open($backend).await {
                        conformance::$verb::$case(fixture).await;
                    }
                })*
            })*)*
        }
    };
}

/// Runs the cases of the suite against a store. `$mark` is for those that depend on what the store decides, and not on its
/// version or on the way to it: `make conformance` runs the ones that are ignored, too.
macro_rules! conformance {
    ($store:ident, $backend:expr, $mark:meta) => {
        instantiate! { $store, $backend;
            // What a version of Redis or a way of connecting to it can change.
            cfg(all()): {
                full {
                    a_full_topic_takes_no_job
                    a_topic_that_does_not_exist_has_room_for_its_limit
                    a_job_that_leaves_makes_room_and_one_that_returns_takes_it
                    a_request_that_adds_no_waiting_job_succeeds_in_a_full_topic
                    a_job_that_would_wait_again_needs_room
                    every_waiting_job_counts_once
                    topics_of_one_call_have_limits_of_their_own
                    calls_at_once_never_exceed_a_limit
                    a_limit_holds_whatever_happens_to_jobs
                    the_oldest_jobs_of_the_lowest_priority_leave_first
                    an_evicted_job_is_expired_and_one_that_runs_stays
                    jobs_past_their_expire_time_leave_first_and_make_room
                    a_limit_holds_for_the_jobs_that_have_it_alone
                    room_is_made_again_and_again_without_a_claim
                    jobs_leave_for_jobs_that_are_written_then
                    room_for_other_callers_is_made_only_down_to_the_limit
                    a_job_that_returns_past_its_expire_time_needs_room
                    a_refused_job_creates_no_topic
                    jobs_of_a_call_arrive_and_count_in_their_order_whatever_their_limits
                    an_id_that_comes_again_is_decided_by_its_own_limit
                }
                fence {
                    a_fence_is_the_store_time_at_which_the_lease_began
                    each_delivery_of_an_id_has_a_greater_fence
                    leases_of_one_claim_begin_together
                    a_fence_rises_though_the_clock_went_back
                    a_fence_rises_over_reopening_though_the_clock_went_back
                    fences_rise_over_claims_of_many_replicas_at_once
                }
                ageing {
                    an_old_job_goes_before_a_fresh_one_of_a_higher_priority
                    without_ageing_levels_are_strict_however_long_a_job_has_waited
                    jobs_of_equal_age_go_by_priority_then_arrival
                    a_job_that_is_not_due_is_not_taken_whatever_its_priority
                    failed_jobs_wait_in_the_same_order
                    an_expired_job_is_passed_over
                    a_job_that_fits_no_worker_is_not_overtaken
                    jobs_of_a_group_age_within_their_group
                    a_stream_of_urgent_jobs_does_not_starve_the_others
                    topics_of_one_claim_have_each_their_own
                    the_longest_ageing_is_exact
                    many_jobs_come_in_the_order_of_a_sort
                    the_number_before_a_job_of_a_group_is_its_place_there
                }
                backlog {
                    what_leaves_a_backlog_leaves_the_others_in_their_order
                    jobs_that_come_and_go_do_not_pile_up
                    a_job_that_leaves_and_comes_back_at_once_is_there_once
                    a_new_job_waits_for_no_clock_that_went_back
                    a_backlog_waits_for_no_clock_that_went_back
                }
                unclaim {
                    a_nonce_undoes_its_whole_claim_and_no_other
                    a_lost_claim_among_many_leases_is_undone_in_parts
                    the_smallest_and_the_largest_nonce_are_undone_like_others
                    nothing_is_counted
                    an_undone_claim_is_not_the_first_attempt
                    an_undone_later_claim_leaves_the_counters
                    an_unclaimed_job_keeps_its_old_place
                    an_unclaimed_lease_is_gone
                    only_leases_that_hold_are_undone
                    an_unclaimed_job_past_its_expire_time_is_expired
                    an_undone_claim_makes_way_for_a_waiting_generation
                    an_unknown_nonce_undoes_nothing
                    a_lease_named_twice_is_undone_once
                }
                extend {
                    the_deadline_moves_to_now_plus_the_duration
                    a_deadline_can_move_nearer
                    an_absent_duration_is_the_leases_own
                    a_longer_extension_does_not_change_the_leases_own_duration
                    a_note_is_kept_until_another_comes
                    an_extension_counts_nothing
                    a_lease_that_ran_out_can_be_extended_until_it_is_reaped
                    only_leases_that_hold_are_extended
                    another_lease_of_the_job_was_not_extended
                    a_finished_job_cannot_be_extended
                }
                explain {
                    a_missing_job_is_not_explained
                    the_job_reads_as_a_brief_get
                    only_a_ready_job_has_jobs_before_it
                    the_number_before_a_job_is_its_place_in_the_order_of_claims
                    jobs_that_left_are_not_before_others
                    an_expired_job_is_not_before_others
                    the_count_stops_at_the_limit
                    a_running_job_has_its_lease
                    a_ready_job_has_the_groups_before_it
                    an_ended_job_has_the_time_until_which_it_is_kept
                }
                get {
                    a_running_job_reads_with_its_lease_and_this_delivery
                    a_running_job_reads_as_running_whatever_the_clock_shows
                    the_last_holder_is_named_after_the_run
                    a_brief_read_has_neither_payload_nor_result_nor_attempts
                    jobs_are_answered_in_the_order_asked_also_twice_and_missing
                    a_job_states_on_which_shard_it_lies
                    many_jobs_are_read_in_one_call
                }
                prune {
                    what_was_kept_long_enough_is_removed
                    a_pruned_expired_job_reads_like_one_that_is_not
                    an_expired_tombstone_has_no_past_before_it_is_pruned
                    an_expired_job_that_is_not_kept_is_removed
                    running_and_waiting_jobs_are_left_alone
                    a_limit_is_kept_and_the_rest_is_announced
                    the_next_time_is_that_of_the_next_job
                    a_pruned_job_is_not_in_the_way_of_a_new_one
                    a_count_does_not_wait_for_all_that_is_past_its_time
                }
                documents {
                    a_document_replaces_the_version_that_its_caller_knows
                    changes_are_read_in_their_order_part_by_part
                    documents_of_unknown_kinds_are_skipped_and_stay
                    a_page_of_large_documents_is_cut
                    a_document_that_was_removed_by_hand_hides_no_other
                    a_document_without_a_topic_is_stored_and_removed
                    documents_of_which_nothing_is_left_are_removed
                }
                policies {
                    a_paused_topic_delivers_nothing_and_takes_jobs
                    a_pause_ends_by_itself_at_its_time
                    a_topic_may_be_paused_before_its_first_job
                    changes_and_resumes_are_announced
                    a_topic_with_a_policy_stays_until_it_is_deleted
                    a_topic_that_lives_again_is_kept_as_any_other
                    a_released_topic_is_neither_created_nor_kept
                    a_write_without_a_version_has_its_effect_only
                    policies_survive_a_restart
                }
                tidy {
                    a_topic_is_forgotten_once_it_was_empty_for_long
                    a_topic_with_a_job_in_any_state_stays
                    a_topic_that_was_used_between_two_looks_stays
                    many_topics_are_forgotten_piece_by_piece
                    what_deleted_jobs_left_behind_is_not_in_the_way_of_new_ones
                    each_server_of_a_topic_receives_that_it_is_forgotten
                }
                stored_bytes {
                    few_jobs_take_their_bytes_and_those_of_their_records
                    many_jobs_are_estimated
                    topics_are_counted_apart_and_only_if_that_is_asked_for
                    all_parts_of_a_job_count_and_go_with_it
                    a_job_of_every_field_counts_whole
                    errors_of_attempts_count
                    a_topic_whose_jobs_are_done_takes_almost_nothing
                }
                adopt {
                    an_adopted_lease_is_tied_to_its_new_stream
                    only_the_stream_that_has_a_lease_gives_it_away
                    a_lease_that_is_tied_is_adopted_only_if_it_was_extended_since
                    a_detach_for_the_former_stream_comes_too_late
                    an_adopted_lease_is_settled_by_its_receipt
                    leases_are_found_by_their_streams
                    many_leases_are_adopted_at_once
                }
                beat {
                    a_shard_is_new_once_and_has_the_last_heartbeat
                    the_caller_finds_itself_and_the_time
                    replicas_of_a_shared_shard_find_each_other
                    replicas_are_met_once_and_gone_when_that_is_reported
                    the_first_state_stays_until_another_is_set
                    a_state_that_is_set_first_is_the_first
                    a_set_state_is_announced
                    of_two_records_of_a_ring_the_newer_one_stays
                    state_and_rings_survive_reopening
                    all_servers_have_one_key_of_receipts
                }
                events {
                    a_ready_job_is_announced
                    a_delayed_job_is_announced_for_its_due_time
                    a_job_that_comes_back_is_announced
                    a_retry_is_announced_for_its_due_time
                    a_generation_that_starts_is_announced
                    a_moved_job_is_announced
                    a_redriven_job_is_announced
                    an_expire_time_is_announced
                    a_deadline_is_announced_and_a_nearer_one_again
                    the_end_of_a_retention_is_announced
                    upkeep_is_announced_again_after_it_was_done
                    upkeep_is_announced_again_after_jobs_were_forgotten
                }
                together {
                    of_many_enqueues_of_one_id_one_creates_it
                    no_job_is_claimed_twice
                    of_many_acks_of_one_lease_one_counts
                    an_ack_and_a_delete_leave_one_end
                    a_reader_sees_all_of_a_call_or_nothing
                }
                restart {
                    everything_reads_the_same_after_reopening
                    a_lease_of_the_former_life_can_be_settled
                    the_streams_of_the_former_life_are_orphans_and_can_be_let_go
                    a_lease_that_ran_out_meanwhile_is_reaped
                    arrival_goes_on_where_it_was
                    a_job_becomes_due_while_no_server_runs
                    an_undelayed_job_is_ready_though_the_clock_went_back
                    one_that_moved_last_hides_no_clock_that_went_back
                    a_repeat_over_a_restart_is_recognized
                    a_shard_is_refused_under_another_name
                    a_closed_store_refuses_every_call
                    the_key_of_receipts_stays
                }
            }
            $mark: {
                again {
                    a_job_that_was_never_written_is_created
                    a_job_that_is_done_is_not_written_again
                    a_job_that_had_expired_when_it_came_is_counted_once_and_recalled
                    a_job_that_ran_before_a_restart_is_not_written_again
                    new_ids_are_written_beside_ones_that_are_taken
                    only_that_job_is_recalled
                    a_repeat_of_whatever_age_never_doubles_a_job
                    a_shard_that_drains_takes_no_job_under_an_id_of_a_server
                }
                enqueue {
                    a_new_job_is_ready_at_once
                    a_new_job_reads_as_it_was_written
                    a_delayed_job_is_scheduled_until_its_time
                    a_delay_is_rounded_up_to_the_microsecond_never_cut
                    a_due_time_that_has_passed_is_now_and_overtakes_no_job
                    an_absent_priority_is_zero
                    every_shape_of_payload_comes_back_as_it_was_sent
                    every_field_of_a_spec_comes_back_as_it_was_sent
                    one_id_in_two_topics_is_two_jobs
                    a_batch_is_answered_in_its_order
                    a_batch_arrives_in_its_order
                    an_empty_batch_is_answered_with_nothing
                    an_id_twice_in_one_call_meets_itself
                    a_job_is_expired_from_its_expire_time_on
                    a_job_that_is_past_its_expire_time_when_it_comes_is_expired
                    a_job_that_expires_unkept_is_gone_at_once
                }
                conflict {
                    nothing_found
                    a_cancelled_job_found
                    a_scheduled_job_found
                    a_ready_job_found
                    a_job_in_backoff_found
                    a_running_job_found
                    a_running_job_with_a_generation_waiting_found
                    the_tombstone_of_a_finished_job_found
                    a_kept_finished_job_found
                    an_expired_job_found
                    a_dead_job_found
                    only_the_last_request_applied_makes_a_repeat
                    a_call_without_a_request_leaves_the_last_one_applied
                    a_call_without_a_request_is_never_a_repeat
                    a_repeated_reschedule_does_not_move_the_job_again
                    a_repeated_deferral_is_recognized
                    a_request_is_remembered_by_the_tombstone
                    a_repeat_within_the_tombstone_is_unchanged_and_after_it_created
                    a_reschedule_without_priority_keeps_it
                    a_reschedule_moves_neither_payload_nor_policy
                }
                bytes {
                    a_topic_without_room_for_the_bytes_takes_no_job
                    a_job_without_a_limit_counts_for_the_others
                    bytes_leave_with_the_job_however_it_ends
                    a_record_that_is_kept_keeps_its_bytes
                    a_job_that_changes_counts_as_it_is
                    a_job_that_moves_takes_its_bytes_along
                    follow_ups_count_and_are_not_held_back
                    calls_at_once_never_exceed_the_bytes
                    the_oldest_jobs_leave_until_there_is_room
                    no_job_leaves_in_vain
                    at_most_512_jobs_leave_for_one
                    jobs_from_before_the_limit_count_soon
                    a_lease_from_before_the_limit_ends_as_ever
                    a_topic_over_its_bytes_loses_twice_what_comes
                    a_limit_of_bytes_that_comes_counts_what_was_left_out
                    a_topic_above_its_bytes_takes_what_does_not_grow_it
                    room_for_bytes_is_made_among_groups_and_many_jobs
                    the_bytes_are_those_of_the_jobs_whatever_happens_to_them
                }
                generations {
                    generations_count_what_is_enqueued_over
                    a_waiting_generation_starts_when_the_lease_ends_however_it_ends
                    a_waiting_generation_waits_for_its_due_time
                    a_waiting_generation_never_runs_beside_the_running_one
                    a_replacing_deferral_takes_the_place_of_the_waiting_one
                    a_rescheduling_deferral_runs_the_same_payload_again
                    a_rescheduling_deferral_moves_the_waiting_one
                    a_rescheduling_deferral_moves_the_priority_of_the_waiting_one
                    a_waiting_generation_can_expire_before_it_starts
                    the_old_lease_has_no_power_over_the_started_generation
                    a_repeated_ack_of_a_generation_is_success_whichever_runs_now
                    a_repeated_ack_is_success_after_the_id_was_enqueued_over
                    a_repeated_settle_is_success_after_its_job_was_put_back
                    delete_removes_the_running_and_the_waiting_generation
                    an_id_is_free_after_both_its_generations_were_deleted
                }
                checkpoint {
                    the_next_delivery_brings_it_along_however_the_lease_ended
                    a_waiting_job_that_moves_or_expires_keeps_it
                    a_dead_job_that_is_put_back_has_it_still
                    it_goes_along_to_another_topic
                    an_ack_clears_it
                    a_replaced_job_and_the_next_generation_have_none
                    an_empty_one_clears_it_and_none_leaves_it
                    the_last_one_counts
                    only_a_live_receipt_saves_one
                    it_has_any_size_that_is_allowed
                    its_bytes_count_in_a_claim
                    it_lies_beside_a_large_payload
                    a_job_is_written_with_one
                    it_is_read_in_full_only
                    it_survives_reopening
                    nothing_is_left_of_it
                }
                claim {
                    nothing_is_handed_out_before_its_due_time
                    a_retried_job_is_not_handed_out_before_its_wait_is_over
                    an_expired_job_is_never_handed_out
                    a_job_is_handed_out_once
                    no_two_leases_of_a_claim_have_one_token
                    order_is_priority_then_due_time_then_arrival
                    fresh_delayed_retried_and_returned_jobs_wait_in_one_order
                    a_retry_without_delay_goes_to_the_end
                    a_delayed_job_comes_before_what_is_enqueued_when_it_is_due
                    jobs_go_round_from_taker_to_taker
                    no_other_gets_more_jobs_than_it_can_take
                    no_other_gets_more_bytes_than_it_can_take
                    bytes_are_those_of_payload_and_headers
                    a_job_that_fits_no_worker_waits_and_nothing_overtakes_it
                    an_oversized_job_comes_alone_to_who_holds_nothing
                    an_oversized_job_does_not_come_after_another
                    a_job_goes_to_the_taker_that_it_fits
                    a_megabyte_job_is_handed_out
                    a_long_backlog_comes_in_order_over_several_claims
                    many_expired_jobs_are_cleared_away_call_by_call
                    the_rest_states_when_the_next_job_is_due
                    the_rest_states_when_a_retry_is_due
                    the_last_job_leaves_nothing
                    expired_jobs_are_not_in_the_way_of_others
                    expired_jobs_are_no_rest
                    a_job_that_expired_before_its_due_time_is_no_rest_once_pruned
                    a_topic_that_does_not_exist_has_nothing_and_is_not_made
                    several_topics_are_answered_in_the_order_of_the_asks
                    the_jobs_own_lease_goes_before_the_takers
                    tokens_of_one_claim_differ_and_share_its_nonce
                    a_lease_shows_whose_it_is_and_what_deciding_needs
                    the_first_start_is_that_of_the_first_attempt
                    a_delivery_reports_what_came_before_it
                    leases_of_unknown_jobs_and_tokens_are_refused
                    an_ask_for_no_stream_states_what_there_is_and_takes_nothing
                }
                groups {
                    the_group_with_the_least_running_jobs_is_next
                    one_claim_of_many_jobs_takes_turns
                    among_equals_the_group_that_was_served_longest_ago_is_next
                    a_group_whose_jobs_come_one_by_one_starves_no_other
                    jobs_without_a_group_are_one_group
                    jobs_that_never_end_delay_their_group_by_a_number_of_turns
                    a_group_alone_is_delivered_in_the_order_of_its_jobs
                    a_retried_job_waits_in_its_group_in_due_order
                    a_weight_is_a_share_of_the_turns
                    turns_go_round_the_streams_too
                    a_job_that_fits_no_stream_is_not_overtaken
                    a_lane_waits_for_its_first_due_time
                    a_small_group_is_not_behind_a_large_one
                    every_end_of_a_lease_is_counted
                    an_ack_a_delete_and_an_unclaim_are_counted
                    many_acks_of_many_groups_are_counted
                    a_job_changes_its_group_by_a_replacement
                    a_move_in_the_order_keeps_the_group
                    expired_jobs_leave_their_lane
                    a_claim_passes_jobs_of_a_lane_that_have_expired
                    follow_ups_join_their_groups
                    a_topic_counts_and_lists_the_jobs_of_its_groups
                    jobs_of_a_paused_group_wait
                    jobs_without_a_group_can_be_paused
                    a_scheduled_lane_is_resumed_for_its_due_time
                    settings_do_not_depend_on_jobs
                    settings_and_lanes_survive_reopening
                    many_settings_are_replaced_as_a_whole
                    groups_are_listed_page_by_page
                    an_undelayed_job_of_a_group_waits_for_no_clock_that_went_back
                    leases_of_groups_are_found_where_others_are
                    jobs_removed_by_hand_leave_their_lanes
                }
                away {
                    a_time_without_servers_is_known_whichever_call_ends_it
                    what_ran_out_meanwhile_is_reported_from_what_ran_out_since
                    a_lease_that_waits_lasts_from_when_its_shard_was_served_again
                    a_worker_that_extends_first_keeps_what_it_asked_for
                    one_server_that_goes_changes_nothing_while_others_are_there
                    a_heartbeat_that_is_late_is_no_time_without_servers
                }
                settle {
                    acks_of_every_kind_fit_one_call
                    a_tombstone_has_the_state_and_neither_payload_nor_result
                    a_kept_record_has_payload_result_and_attempts
                    a_result_may_be_empty_bytes_or_a_megabyte
                    a_job_that_is_not_kept_is_forgotten_with_its_ack
                    a_late_ack_that_comes_before_the_reaper_counts
                    follow_ups_are_written_with_the_ack_and_only_once
                    a_refused_ack_writes_no_follow_up
                    a_repeated_ack_is_success_while_the_record_lives
                    a_repeated_nack_is_success_and_counts_once
                    a_repeated_nack_is_success_though_the_job_runs_again
                    a_settle_is_remembered_for_ten_more_leases
                    an_undone_claim_forgets_no_settle
                    a_lease_that_ended_by_itself_was_not_settled
                    a_deleted_job_is_gone_for_every_lease_that_it_had
                    another_action_with_a_used_token_is_stale
                    the_same_lease_twice_in_one_call_is_settled_once
                    a_batch_of_settles_is_answered_in_its_order
                    a_job_or_topic_that_is_not_there_is_not_found
                    a_lease_of_a_former_life_of_the_id_is_stale
                    an_ack_with_another_deadline_is_only_known_as_a_repeat
                    a_guarded_settle_is_refused_once_the_lease_was_extended
                    a_settled_lease_is_no_lease
                }
                attempts {
                    every_end_counts_a_delivery_and_only_failures_count_as_such
                    a_failed_job_backs_off_until_its_wait_is_over
                    the_first_release_keeps_the_place_and_the_next_waits
                    a_dead_letter_keeps_its_payload_for_the_retention_of_the_dead
                    attempts_are_the_last_ten_newest_first
                    each_way_of_ending_is_remembered_as_what_it_was
                    only_a_failure_with_an_error_changes_one_that_a_worker_gave
                    crashes_are_counted_apart_and_redriven_away
                    a_job_is_dead_at_its_limit_of_crashes
                    a_running_job_outlives_its_expire_time_but_its_retry_does_not
                    a_retry_that_waits_beyond_the_expire_time_expires_then
                    a_job_that_expires_with_its_lease_is_kept_from_then_on
                }
                crash_topic {
                    a_job_that_its_crash_topic_has_leaves_nothing_here
                    the_id_of_a_moved_job_is_remembered_if_a_server_made_it
                    a_job_that_its_crash_topic_rejects_is_dead_with_the_reason
                    an_extended_lease_does_not_end_by_a_move
                    a_waiting_generation_begins_instead_of_a_move
                    a_job_brings_its_last_error_from_another_topic
                }
                delete {
                    a_waiting_job_is_cancelled
                    a_job_in_backoff_is_cancelled
                    a_running_job_is_cancelled_and_its_lease_revoked
                    only_a_running_job_has_a_lease_to_revoke
                    a_cancelled_job_is_kept_like_a_finished_one
                    the_lease_of_a_deleted_job_that_is_not_kept_is_not_found
                    finished_dead_cancelled_and_expired_jobs_are_forgotten
                    what_is_not_there_is_not_deleted
                    a_delete_that_means_one_generation_leaves_the_next_one_alone
                    the_same_job_twice_in_one_call_is_cancelled_then_forgotten
                    a_forgotten_record_that_is_not_pruned_is_not_found
                }
                purge {
                    each_state_is_purged_alone
                    what_runs_is_revoked_and_its_next_generation_goes_too
                    what_was_enqueued_since_the_begin_stays
                    a_generation_that_was_enqueued_since_the_begin_stays
                    what_the_purge_itself_has_cancelled_stays
                    a_job_that_left_the_state_meanwhile_stays
                    a_job_that_moved_on_to_another_named_state_goes
                    a_job_past_its_expire_time_is_an_expired_one
                    what_is_not_there_is_not_purged
                    of_purges_and_acks_at_once_one_gets_each_job
                    jobs_are_claimed_or_purged_never_both
                    jobs_of_one_group_are_purged_alone
                }
                reschedule {
                    a_scheduled_job_moves_earlier_later_and_to_now
                    a_moved_job_is_claimed_at_its_new_time
                    a_job_in_backoff_moves_and_keeps_its_counters
                    an_absent_due_time_or_priority_is_kept
                    a_new_priority_changes_the_order
                    a_dead_job_is_revived
                    a_revived_job_is_not_forgotten_like_the_dead_one
                    running_and_finished_jobs_are_refused_by_their_state
                    a_missing_job_is_answered_with_none
                    a_reschedule_raises_no_generation_and_no_total
                    a_job_moved_beyond_its_expire_time_expires
                    the_items_of_a_call_are_answered_in_their_order
                    a_job_that_died_after_its_expire_time_is_revived_all_the_same
                    a_due_time_that_has_passed_is_now
                }
                redrive {
                    a_redriven_job_is_like_new_but_for_what_it_is
                    dead_letters_come_back_in_the_order_of_their_due_times
                    due_times_are_spaced_from_the_delay_on
                    only_jobs_in_the_named_states_are_put_back
                    a_redriven_job_does_not_show_its_former_end
                    what_is_not_terminal_or_not_there_is_skipped
                    tombstones_are_skipped
                    a_kept_job_that_never_had_a_payload_is_no_tombstone
                    a_redriven_job_keeps_its_expire_time
                    a_dry_run_counts_and_changes_nothing
                    a_dry_run_with_a_rate_counts_what_is_put_back
                    jobs_move_to_another_topic
                    a_job_that_moves_arrives_after_those_that_are_there
                    a_job_that_moves_takes_a_large_payload_along
                    an_id_that_is_taken_in_the_target_stays
                    the_own_topic_as_target_is_no_move
                    a_topic_that_does_not_exist_has_nothing_to_redrive
                    an_id_named_twice_is_redriven_once
                }
                reap {
                    a_lease_is_found_from_its_deadline_on
                    what_is_found_is_what_reading_the_lease_shows
                    reading_ends_nothing
                    an_ack_after_the_reaping_is_stale
                    a_limit_is_kept_and_the_rest_is_announced
                    an_extended_lease_is_found_at_its_new_deadline
                    settled_unclaimed_and_deleted_leases_are_not_found
                    an_empty_store_has_nothing_to_reap
                }
                list {
                    jobs_behind_many_that_were_deleted_are_found_page_by_page
                    pages_go_through_all_priorities_in_one_order
                    a_list_has_the_jobs_of_its_topic_and_state
                    a_brief_list_reads_like_a_brief_get
                    the_clock_moves_jobs_from_list_to_list
                    jobs_come_by_due_time_whatever_their_priority
                    pages_follow_each_other_without_gaps_or_repeats
                    a_page_may_end_behind_any_of_its_jobs
                    a_job_that_leaves_between_two_pages_leaves_no_gap
                    a_list_of_nothing_is_empty
                    every_job_is_in_exactly_one_list
                }
                topics_stats {
                    topics_come_in_the_order_of_their_names
                    all_ids_of_a_topic_are_in_its_parts
                    topics_are_found_by_prefix_and_paged_by_name
                    an_underscore_in_a_prefix_is_an_underscore
                    a_topic_comes_to_be_with_its_first_job_and_stays
                    a_topic_that_does_not_exist_has_no_numbers
                    numbers_follow_every_transition
                    jobs_that_are_due_soon_are_counted_up_to_the_requested_time
                    an_expired_job_is_in_no_number
                    kept_records_are_counted_if_that_is_asked_for
                    totals_only_rise
                    the_oldest_ready_job_is_the_one_that_became_due_first
                    a_shard_reports_what_it_is
                    a_shard_reports_the_space_that_jobs_take
                    a_shard_counts_its_jobs_by_state
                    a_shard_counts_the_jobs_of_all_its_topics
                    a_shard_states_until_when_jobs_stay
                    a_kept_job_is_found_behind_many_that_expire_later
                    a_shard_states_whether_it_takes_new_jobs
                    a_store_states_what_a_write_reaches
                }
                orphans {
                    leases_of_other_replicas_that_carry_a_grace_are_orphans
                    an_orphan_reads_as_its_lease_does
                    ended_leases_are_no_orphans
                    a_lease_past_its_deadline_is_an_orphan_still
                    leases_of_several_living_replicas_are_no_orphans
                    a_detached_lease_is_no_orphan_with_any_extender
                    many_orphans_are_found_in_every_topic
                }
                elsewhere {
                    a_settle_elsewhere_reports_the_owner_which_leases_are_over
                    an_adoption_is_reported_to_the_former_owner_and_what_follows_to_the_new_one
                    leases_of_many_streams_and_owners_are_distinguished
                    what_a_replica_does_to_its_own_leases_it_is_not_reported
                    an_end_by_another_replicas_timer_takes_the_lease_away
                    a_delete_elsewhere_takes_the_lease_away
                    an_extend_elsewhere_reports_the_new_deadline
                    what_is_refused_elsewhere_is_not_reported
                }
            }
        }
    };
}

conformance!(sqlite_file, Backend::SqliteFile, cfg(all()));
conformance!(sqlite_memory, Backend::SqliteMemory, ignore = "make conformance");
conformance!(redis, Backend::Redis, cfg(all()));
conformance!(redis_6, Backend::Redis6, ignore = "make conformance");
conformance!(redis_8, Backend::Redis8, ignore = "make conformance");
conformance!(valkey, Backend::Valkey, ignore = "make conformance");
conformance!(sentinel, Backend::Sentinel, ignore = "make conformance");

//! The contract of a store as tests. Every store runs every case, so all stores behave in the same way.
//!
//! A store provides a [`Fixture`]: two handles on one new database, as two instances would have them, and a way to let the
//! store's time pass. `for_store!` makes one test of each case.

pub mod attempts;
pub mod audit;
pub mod contacts;
pub mod events;
pub mod failures;
pub mod fleet;
pub mod inbox;
pub mod jobs;
pub mod leases;
pub mod lists;
pub mod lookups;
pub mod options;
pub mod redrives;
pub mod schedule;
pub mod submissions;
pub mod targets;
pub mod webhooks;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{
    ChangeCursor, FencedResults, FencedWrites, FinishAttempt, FinishResult, History, NewIntent, OpenAttempt,
    PurgeRequest, Purged, Refresh, RefreshRequest, StartResult, Store, StoredIntent, Submitted, WriteBatch,
};
use crate::domain::contract::fixtures::deadline;
use crate::domain::contract::{Contract, ContractSnapshot};
use crate::domain::intent::{Intent, IntentId, IntentSeq, Payload};
use crate::domain::lease::{Lease, Term};
use crate::domain::outcome::Outcome;
use crate::domain::policy;
use crate::domain::schedule::Waiting;
use crate::domain::time::Timestamp;
use crate::store::FencedError;

/// Makes a test of every case for a store, each on a database of its own. The function that opens the database returns
/// `None` if there is no server to test with; the case is then skipped.
macro_rules! for_store {
    ($open:ident: $($module:ident { $($case:ident),+ $(,)? })+) => {
        $(mod $module {
            $(#[tokio::test]
            async fn $case() {
                if let Some(fixture) = super::$open().await {
                    $crate::store::conformance::$module::$case(fixture).await;
                }
            })+
        })+
    };
    ($open:ident) => {
        $crate::store::conformance::for_store! { $open:
            submissions {
                a_new_intent_is_created_and_found,
                a_repeated_submission_returns_the_existing_intent,
                another_target_or_payload_is_a_conflict,
                ids_are_compared_byte_for_byte,
                payload_bytes_are_stored_unchanged,
                one_batch_may_contain_the_same_id_several_times,
                racing_instances_create_one_intent,
                a_stored_contract_does_not_change_with_the_registry,
            }
            attempts {
                an_attempt_is_recorded_as_open_before_it_is_made,
                a_new_intent_may_be_started_on_insert,
                every_decision_is_applied,
                an_attempt_is_finished_once,
                a_retry_starts_when_it_is_due_and_not_before,
                no_attempt_starts_after_the_deadline,
                only_overdue_waiting_intents_expire,
                a_stale_term_changes_nothing,
                an_expired_term_changes_nothing_even_without_a_successor,
                submissions_are_stored_even_if_the_fenced_writes_are_refused,
                the_next_term_closes_attempts_that_were_left_open,
                a_postponed_attempt_uses_up_no_number_and_waits_until_it_is_due,
                an_invalid_item_fails_alone,
            }
            failures {
                failures_are_counted_by_target_and_cause,
                a_list_has_the_intents_of_one_cause,
                causes_of_failed_intents_are_found,
            }
            fleet {
                instances_report_themselves_until_they_stop,
                what_instances_take_in_is_counted_once,
                gateways_are_on_hold_until_their_time,
                times_to_the_end_are_those_of_recent_intents,
            }
            leases {
                one_holder_at_a_time,
                a_renewed_lease_lasts_longer,
                an_expired_lease_cannot_be_renewed,
                the_same_holder_acquires_the_lease_again_with_a_new_epoch,
                a_released_lease_can_be_acquired_immediately,
                one_store_has_one_leader_even_with_different_lease_names,
                racing_instances_get_one_term,
                a_lease_is_reset_only_if_it_was_not_renewed_since,
                the_holder_of_every_term_is_recorded,
            }
            lists {
                a_list_can_begin_with_the_oldest,
                pages_from_the_oldest_go_on_after_an_intent_that_was_deleted,
                intents_are_counted_by_status,
                counts_are_bounded,
                failures_of_one_target_are_found_among_those_of_others,
            }
            schedule {
                the_snapshot_has_the_first_page_of_every_lane,
                pages_of_a_lane_follow_one_another,
                changes_are_reported_once_and_in_small_steps,
                many_changes_with_one_timestamp_are_all_reported,
                started_and_ended_intents_are_not_reported,
                a_retry_is_reported,
                no_change_is_missed_when_commits_race_with_the_cursor,
                a_refresh_reports_whether_intents_are_overdue,
                the_backlog_counts_waiting_intents_by_target,
            }
            options {
                a_waiting_intent_can_be_cancelled,
                an_intent_that_has_ended_cannot_be_cancelled,
                an_open_attempt_can_be_the_last_one,
                a_request_to_cancel_is_kept_over_terms_and_postponements,
                a_scheduled_intent_waits_for_its_start,
                the_start_is_compared_and_bounded,
                only_intents_without_a_scheduled_start_are_started_on_insert,
                an_intent_is_repeated_once_under_the_key_of_its_chain,
                an_intent_that_repeats_another_may_be_started_on_insert,
                retention_deletes_options_with_their_intents,
            }
            redrives {
                a_plan_has_failed_intents_and_says_what_it_leaves_out,
                filters_choose_intents,
                states_follow_one_another,
                redrives_are_listed_newest_first,
                a_redrive_creates_an_intent_for_each_of_its_plan,
                intents_that_cannot_be_redriven_any_more_are_skipped,
                a_busy_gateway_holds_up_its_own_targets_only,
                a_step_that_creates_nothing_confuses_no_contracts,
                only_the_term_that_leads_works_off_redrives_that_run,
                the_outcomes_of_a_redrive_outlive_its_intents,
                pages_of_a_redrive_have_its_intents_only,
                a_redrive_source_has_the_payload_and_the_key_of_the_chain,
            }
            targets {
                no_attempt_of_a_paused_target_starts,
                deadlines_of_a_paused_target_keep_running,
                snapshots_and_refreshes_show_paused_targets,
                the_activity_of_a_target_has_its_attempts_and_contracts,
            }
            lookups {
                unknown_ids_are_not_found,
                history_is_in_order_and_complete,
                lists_are_newest_first_and_paged_without_gaps,
                lists_filter_by_status_target_and_time,
                pages_stay_stable_while_intents_arrive,
                intents_are_found_by_the_prefix_of_their_id,
                intents_are_found_by_the_message_id_of_a_gateway,
                a_search_shows_every_match_once_on_pages_of_the_requested_size,
                the_detail_of_an_intent_is_complete,
                the_overview_shows_who_leads_and_what_waits,
                the_results_of_attempts_are_counted,
                retention_deletes_old_terminal_intents_only,
                numbers_of_purged_intents_are_not_reused,
                a_reachable_store_accepts_probes,
            }
            events {
                every_end_is_an_event_in_the_order_of_commits,
                pages_follow_one_another_within_a_transaction_too,
                a_page_examines_a_limited_number_of_events_and_advances,
                intents_and_jobs_have_feeds_of_their_own,
                no_event_is_missed_or_repeated_when_commits_race_with_the_reader,
                a_reader_that_missed_deleted_events_is_told,
                a_position_that_the_store_has_not_reached_is_refused,
            }
            webhooks {
                every_end_of_an_intent_makes_one_event_pending,
                a_try_is_recorded_as_open_and_finished_once,
                a_busy_receiver_leaves_slots_for_others,
                tries_that_were_left_open_are_closed_and_due_again,
                a_stale_term_changes_no_event,
                an_event_can_be_redelivered,
                tries_under_way_are_not_closed,
                an_event_that_cannot_be_read_delays_no_other,
                retention_waits_for_pending_events,
                a_purge_skips_intents_with_pending_events_and_does_not_examine_them_again,
                the_backlog_has_the_age_of_the_oldest_pending_event,
            }
            jobs {
                a_job_is_stored_together_with_its_intent,
                one_key_is_one_job,
                racing_instances_create_one_job,
                jobs_are_listed_by_tenant_and_workspace,
                intents_of_jobs_are_never_listed,
                a_node_that_does_not_answer_gets_no_jobs_except_probes,
                retention_deletes_jobs_with_their_intents,
            }
            inbox {
                submissions_are_stored_unchanged,
                the_format_of_a_payload_is_stored,
                one_key_is_one_submission,
                a_submission_becomes_one_message_of_one_contact,
                a_failed_submission_is_tried_again_parked_and_reprocessed,
                only_the_leader_processes_submissions,
                lists_of_the_inbox_are_paged,
                a_long_message_is_shown_up_to_a_whole_character,
            }
            audit {
                every_action_has_one_entry_that_says_who_did_what,
                an_action_that_changes_nothing_has_no_entry,
                a_single_redrive_has_an_entry_if_it_creates_an_intent,
                texts_are_stored_unchanged,
                racing_instances_append_to_one_chain,
                entries_are_listed_newest_first_and_filtered,
                a_purge_deletes_the_oldest_entries_and_is_an_entry_itself,
                only_the_leader_purges_entries,
            }
            contacts {
                a_contact_is_found_by_email_first,
                a_contact_without_an_email_gets_the_email_of_the_next_message,
                a_phone_is_never_taken_from_another_contact,
                a_phone_alone_goes_to_the_contact_without_an_email_else_to_the_oldest,
                contacts_of_clients_are_separate,
                random_submissions_make_the_same_contacts_as_a_model,
                racing_submissions_make_one_contact,
            }
        }
    };
}
pub(crate) use for_store;

/// Resolves when a step of a fixture is done.
pub type Passing = Pin<Box<dyn Future<Output = ()>>>;

/// A new database for one case.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    /// Another instance on the same database.
    pub other: Arc<dyn Store>,
    /// A duration in whole seconds that is longer than a few calls take.
    pub short: Duration,
    /// Lets the store's time pass.
    pub pass: Box<dyn Fn(Duration) -> Passing>,
    /// Inserts an audit row for attempt 1 of an intent directly into the database, so that this attempt cannot be finished.
    pub spoil: Box<dyn Fn(IntentSeq) -> Passing>,
    /// Replaces the contract of an intent by one that this program cannot read.
    pub garble: Box<dyn Fn(IntentSeq) -> Passing>,
    /// What must live as long as the database.
    pub keep: Box<dyn std::any::Any>,
}

/// The duration of the lease in most cases. It is longer than any case takes.
pub const LONG: Duration = Duration::from_secs(600);

impl Fixture {
    pub async fn pass(&self, duration: Duration) {
        (self.pass)(duration).await;
    }

    /// Returns a contract whose deadline is [`Fixture::short`] after submission.
    pub fn short_deadline(&self) -> Contract {
        deadline(u32::try_from(self.short.as_secs()).unwrap())
    }

    pub async fn submit(&self, id: &str, contract: &Contract) -> Intent {
        match submit_to(&*self.store, new_intent(id, contract, b"{}")).await {
            Submitted::Created(intent) => intent,
            other => panic!("{id} was not created: {other:?}"),
        }
    }

    pub async fn acquire(&self, holder: &str) -> Option<Lease> {
        acquire_from(&*self.store, "lease", holder, LONG).await
    }

    pub async fn lead(&self, holder: &str) -> Term {
        self.acquire(holder).await.expect("the lease is free").term
    }

    /// Makes writes of a term; `None` if the term is over.
    pub async fn fenced(&self, writes: FencedWrites) -> Option<FencedResults> {
        let batch = WriteBatch { fenced: Some(writes), ..WriteBatch::default() };
        match self.store.commit(batch).await.expect("commit").fenced {
            Ok(results) => Some(results),
            Err(error) => {
                assert_eq!(error, FencedError::TermOver);
                None
            }
        }
    }

    /// Starts the next attempt of a waiting intent; `None` if the term is over.
    pub async fn start(&self, term: &Term, waiting: &Waiting) -> Option<StartResult> {
        let results = self.fenced(FencedWrites { starts: vec![waiting.clone()], ..writes(term) }).await?;
        Some(results.starts.into_iter().next().unwrap().unwrap())
    }

    /// Starts the next attempt of an intent that is due.
    pub async fn start_due(&self, term: &Term, intent: &Intent) -> OpenAttempt {
        match self.start(term, &self.waiting(intent).await).await {
            Some(StartResult::Started { attempt, .. }) => attempt,
            other => panic!("not started: {other:?}"),
        }
    }

    /// Finishes an attempt; `None` if the term is over.
    pub async fn finish(&self, term: &Term, attempt: &OpenAttempt, outcome: Outcome) -> Option<FinishResult> {
        let finished_at = self.now().await;
        let results = self
            .fenced(FencedWrites { finishes: vec![finished(attempt, outcome, finished_at)], ..writes(term) })
            .await?;
        Some(results.finishes.into_iter().next().unwrap().unwrap())
    }

    /// Starts and finishes an attempt.
    pub async fn attempt(&self, term: &Term, intent: &Intent, outcome: Outcome) {
        let attempt = self.start_due(term, intent).await;
        assert_eq!(self.finish(term, &attempt, outcome).await, Some(FinishResult::Recorded));
    }

    /// Purges to the end, with at most `limit` intents in each step. Returns how many intents each step deleted.
    pub async fn purge(&self, term: &Term, older_than: Duration, limit: usize) -> Vec<usize> {
        let (mut steps, mut after) = (Vec::new(), None);
        loop {
            let request = PurgeRequest { older_than, after, limit };
            let Purged { intents, next, .. } = self.store.purge(term.clone(), request).await.unwrap();
            assert!(next.is_none() || next != after, "each step continues where the last one ended");
            steps.push(intents);
            after = next;
            if after.is_none() {
                return steps;
            }
        }
    }

    pub async fn now(&self) -> Timestamp {
        self.store.schedule_snapshot(1).await.unwrap().now
    }

    pub async fn find(&self, id: &str) -> Option<StoredIntent> {
        self.store.find(intent_id(id)).await.unwrap()
    }

    pub async fn intent(&self, id: &str) -> Intent {
        self.find(id).await.expect(id).intent
    }

    pub async fn history(&self, id: &str) -> History {
        self.store.history(intent_id(id)).await.unwrap().expect(id)
    }

    /// Returns an intent as the schedule reads it.
    pub async fn waiting(&self, intent: &Intent) -> Waiting {
        let snapshot = self.store.schedule_snapshot(10_000).await.unwrap();
        let mut all = snapshot.lanes.into_iter().flat_map(|lane| lane.waiting);
        all.find(|waiting| waiting.seq == intent.seq).unwrap_or_else(|| panic!("{} does not wait", intent.id))
    }

    pub async fn refresh(&self, cursor: &ChangeCursor, limit: usize) -> Refresh {
        let request = RefreshRequest { cursor: cursor.clone(), limit, pages: Vec::new() };
        self.store.refresh_schedule(request).await.unwrap()
    }
}

pub fn writes(term: &Term) -> FencedWrites {
    FencedWrites::new(term)
}

pub fn finished(attempt: &OpenAttempt, outcome: Outcome, finished_at: Timestamp) -> Arc<FinishAttempt> {
    let decision = policy::decide(&attempt.contract, attempt.begins_at, attempt.attempt_number, &outcome, finished_at);
    Arc::new(FinishAttempt { attempt: attempt.clone(), finished_at, outcome, decision })
}

/// Requests a purge of all intents that have ended.
pub fn purge_all() -> PurgeRequest {
    PurgeRequest { older_than: Duration::ZERO, after: None, limit: 10 }
}

pub fn intent_id(text: &str) -> IntentId {
    IntentId::parse(text).unwrap()
}

pub fn new_intent(id: &str, contract: &Contract, payload: &'static [u8]) -> NewIntent {
    NewIntent {
        id: intent_id(id),
        contract: Arc::new(ContractSnapshot::of(contract.clone()).unwrap()),
        payload: Payload::new(Bytes::from_static(payload)),
        not_before: None,
        redrive: None,
        trace: None,
        job: None,
    }
}

pub async fn submit_to(store: &dyn Store, new: NewIntent) -> Submitted {
    let results = store.commit(WriteBatch { submits: vec![new], ..WriteBatch::default() }).await.expect("commit");
    results.submits.into_iter().next().unwrap().expect("submit")
}

pub async fn acquire_from(store: &dyn Store, name: &str, holder: &str, duration: Duration) -> Option<Lease> {
    store.acquire_lease(name.into(), holder.into(), duration).await.expect("acquire")
}

pub fn accepted() -> Outcome {
    Outcome::Accepted { gateway_message_id: Some("gw-1".to_owned()) }
}

pub fn rejected(reason: &str) -> Outcome {
    Outcome::Rejected { reason: reason.to_owned(), gateway_message_id: None }
}

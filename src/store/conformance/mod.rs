//! The contract of a store as tests: every store runs every case, and a behaviour that no case
//! shows does not exist.
//!
//! A store brings a [`Fixture`]: two handles on one fresh database, as two instances would have,
//! and a way to let its time pass. `for_store!` makes one test of each case.

pub mod attempts;
pub mod contacts;
pub mod inbox;
pub mod jobs;
pub mod leases;
pub mod lookups;
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

/// Makes a test of every case for a store, each on a database of its own. The function that opens
/// one may say `None` where there is no server, having said so in its own way.
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
                the_same_again_returns_the_existing_one,
                another_target_or_payload_is_a_conflict,
                ids_are_compared_byte_for_byte,
                payload_bytes_are_kept_as_they_are,
                one_batch_may_hold_one_id_several_times,
                racing_instances_create_one_intent,
                a_snapshot_does_not_follow_the_registry,
            }
            attempts {
                an_attempt_is_written_down_before_it_is_made,
                a_new_intent_may_be_started_on_insert,
                every_decision_is_applied,
                an_attempt_is_finished_once,
                a_retry_begins_when_it_is_due_and_not_before,
                no_attempt_begins_after_the_deadline,
                only_overdue_waiting_intents_expire,
                a_stale_term_changes_nothing,
                an_expired_term_changes_nothing_even_without_a_successor,
                submissions_do_not_care_about_the_fence,
                the_next_term_closes_what_was_left_open,
                a_postponed_attempt_uses_up_nothing_and_waits_until_it_is_due,
                one_bad_item_fails_alone,
            }
            leases {
                one_holder_at_a_time,
                a_renewed_lease_lasts_longer,
                an_expired_lease_cannot_be_renewed,
                the_same_holder_comes_back_with_a_new_epoch,
                a_released_lease_is_free_at_once,
                one_store_has_one_executor_whatever_the_lease_is_called,
                racing_instances_get_one_term,
                a_lease_is_reset_only_as_it_was_seen,
            }
            schedule {
                the_first_look_shows_every_lane,
                pages_of_a_lane_follow_one_another,
                changes_are_reported_once_and_in_small_steps,
                many_changes_with_one_timestamp_are_all_reported,
                what_is_begun_or_ended_is_not_reported,
                a_retry_is_reported,
                nothing_is_lost_to_commits_that_race_the_cursor,
                overdue_intents_are_announced,
                the_backlog_counts_what_waits,
            }
            targets {
                nothing_begins_for_a_paused_target,
                deadlines_of_a_paused_target_go_on_passing,
                every_look_shows_which_targets_are_paused,
            }
            lookups {
                unknown_ids_are_not_found,
                history_is_in_order_and_complete,
                lists_are_newest_first_and_paged_without_gaps,
                lists_filter_by_status_target_and_time,
                pages_stay_stable_while_intents_arrive,
                ids_are_found_by_how_they_begin,
                intents_are_found_by_what_gateways_call_them,
                a_search_shows_every_match_once_on_pages_of_the_asked_size,
                an_intent_can_be_looked_at_in_full,
                the_overview_shows_who_leads_and_what_waits,
                what_became_of_attempts_is_added_up,
                retention_deletes_old_terminal_intents_only,
                numbers_of_purged_intents_are_not_given_again,
                a_reachable_store_takes_probes,
            }
            webhooks {
                every_end_of_an_intent_owes_one_event,
                a_try_is_written_down_and_recorded_once,
                a_busy_receiver_leaves_room_for_others,
                what_was_left_open_is_closed_and_due_again,
                a_stale_term_changes_no_event,
                an_event_may_be_asked_for_again,
                tries_under_way_are_not_closed,
                an_event_that_cannot_be_read_holds_up_nobody,
                retention_waits_for_what_is_owed,
                a_purge_steps_over_what_is_owed_and_does_not_come_back_to_it,
                the_age_of_what_is_owed_is_known,
            }
            jobs {
                a_job_and_its_intent_are_one_thing,
                one_key_is_one_job,
                racing_instances_create_one_job,
                jobs_are_listed_by_tenant_and_workspace,
                jobs_are_not_among_the_intents_of_others,
                a_node_that_does_not_answer_is_let_alone_and_tried,
                retention_deletes_jobs_with_their_intents,
            }
            inbox {
                what_comes_in_is_kept_as_it_came,
                how_a_payload_is_written_is_kept,
                one_key_is_one_submission,
                a_submission_becomes_one_message_of_one_contact,
                what_fails_is_tried_again_then_parked_then_processed,
                only_the_leader_processes,
                lists_of_the_inbox_are_paged,
                a_long_message_is_shown_up_to_a_whole_character,
            }
            contacts {
                a_contact_is_found_by_email_first,
                a_contact_without_an_email_is_adopted,
                a_phone_is_never_taken_from_another_contact,
                a_phone_alone_goes_to_the_contact_without_an_email_else_to_the_oldest,
                contacts_are_of_their_client,
                any_rows_make_the_contacts_of_the_model,
                racing_rows_make_one_contact,
            }
        }
    };
}
pub(crate) use for_store;

pub type Passing = Pin<Box<dyn Future<Output = ()>>>;

pub struct Fixture {
    pub store: Arc<dyn Store>,
    /// Another instance on the same database.
    pub other: Arc<dyn Store>,
    /// A span, in whole seconds, within which a few calls surely end.
    pub short: Duration,
    /// Lets the store's time pass.
    pub pass: Box<dyn Fn(Duration) -> Passing>,
    /// Puts an audit row for attempt 1 of an intent behind the store's back, so that finishing that
    /// attempt cannot be done.
    pub spoil: Box<dyn Fn(IntentSeq) -> Passing>,
    /// Makes the contract of an intent something that this program does not know.
    pub garble: Box<dyn Fn(IntentSeq) -> Passing>,
    /// Whatever must live as long as the database.
    pub keep: Box<dyn std::any::Any>,
}

/// The lease of most cases: long enough that no case outlives it by accident.
pub const LONG: Duration = Duration::from_secs(600);

impl Fixture {
    pub async fn pass(&self, span: Duration) {
        (self.pass)(span).await;
    }

    /// A contract whose deadline is a short span away.
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

    pub async fn begin(&self, term: &Term, waiting: &Waiting) -> Option<StartResult> {
        let receipt = self.fenced(FencedWrites { starts: vec![waiting.clone()], ..writes(term) }).await?;
        Some(receipt.starts.into_iter().next().unwrap().unwrap())
    }

    /// Begins the next attempt of an intent that is due.
    pub async fn begin_due(&self, term: &Term, intent: &Intent) -> OpenAttempt {
        match self.begin(term, &self.waiting(intent).await).await {
            Some(StartResult::Started { attempt, .. }) => attempt,
            other => panic!("not begun: {other:?}"),
        }
    }

    pub async fn finish(&self, term: &Term, attempt: &OpenAttempt, outcome: Outcome) -> Option<FinishResult> {
        let finished_at = self.now().await;
        let receipt = self
            .fenced(FencedWrites { finishes: vec![finished(attempt, outcome, finished_at)], ..writes(term) })
            .await?;
        Some(receipt.finishes.into_iter().next().unwrap().unwrap())
    }

    /// Begins and finishes an attempt.
    pub async fn attempt(&self, term: &Term, intent: &Intent, outcome: Outcome) {
        let attempt = self.begin_due(term, intent).await;
        assert_eq!(self.finish(term, &attempt, outcome).await, Some(FinishResult::Recorded));
    }

    /// Purges to the end, examining at most `limit` intents in each step; how many each step deleted.
    pub async fn purge(&self, term: &Term, older_than: Duration, limit: usize) -> Vec<usize> {
        let (mut steps, mut after) = (Vec::new(), None);
        loop {
            let request = PurgeRequest { older_than, after, limit };
            let Purged { intents, next, .. } = self.store.purge(term.clone(), request).await.unwrap();
            assert!(next.is_none() || next != after, "a purge goes on");
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

    /// An intent as the schedule would show it.
    pub async fn waiting(&self, intent: &Intent) -> Waiting {
        let build = self.store.schedule_snapshot(10_000).await.unwrap();
        let mut all = build.lanes.into_iter().flat_map(|lane| lane.waiting);
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
    let decision = policy::decide(&attempt.contract, attempt.created_at, attempt.attempt_number, &outcome, finished_at);
    Arc::new(FinishAttempt { attempt: attempt.clone(), finished_at, outcome, decision })
}

/// A purge of all that has ended.
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
        trace: None,
        job: None,
    }
}

pub async fn submit_to(store: &dyn Store, new: NewIntent) -> Submitted {
    let receipt = store.commit(WriteBatch { submits: vec![new], ..WriteBatch::default() }).await.expect("commit");
    receipt.submits.into_iter().next().unwrap().expect("submit")
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

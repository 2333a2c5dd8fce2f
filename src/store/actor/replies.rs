//! What the store actor does with the results of a batch: it answers the callers, counts and logs, and wakes other actors.

use std::time::Duration;

use super::super::messages::AttemptsStarted;
use super::super::{
    BatchResults, FencedResults, FinishAttempt, FinishResult, Received, StartResult, StoreError, Submitted,
    TermSubscriber,
};
use super::StoreActor;
use super::batching::{Callers, FencedCaller};
use crate::domain::intent::{ExhaustedReason, Intent};
use crate::domain::job::SubmissionId;

impl StoreActor {
    /// Answers the callers of a batch that was committed, and wakes the actors that now have something to do.
    pub(super) fn answer(&mut self, callers: Callers, results: BatchResults, subscriber: Option<&TermSubscriber>) {
        // The executor gets its attempts first. That delays the callers only by microseconds.
        results.started.iter().for_each(|_| self.deps.metrics.attempt_started(Duration::ZERO));
        if let Some(subscriber) = subscriber.filter(|_| !results.started.is_empty()) {
            // `do_send` ignores the bound of the mailbox; the number of slots bounds it.
            subscriber.started.do_send(AttemptsStarted(results.started));
        }
        let mut intents_wait = false;
        for (reply, result) in callers.submits.into_iter().zip(results.submits) {
            match &result {
                Ok(Submitted::Created(intent)) => {
                    intents_wait |= !intent.attempt_open;
                    self.deps.metrics.intents_created.inc();
                }
                Ok(Submitted::Existing(_)) => self.deps.metrics.idempotent_hits.inc(),
                Ok(Submitted::Conflict(_)) => self.deps.metrics.idempotency_conflicts.inc(),
                Ok(Submitted::TooFarAhead | Submitted::AlreadyRedriven) => {}
                Err(error) => self.report_failed_item(error),
            }
            let _caller_may_be_gone = reply.send(result);
        }
        if !callers.received.is_empty() {
            self.deps.inbox_filled.notify_one();
        }
        for (reply, result) in callers.received.into_iter().zip(results.received) {
            match &result {
                Ok(Received::Created(_)) => self.deps.metrics.inbox_received(),
                Ok(_) => {}
                Err(error) => self.report_failed_item(error),
            }
            let _caller_may_be_gone = reply.send(result);
        }
        match results.fenced {
            Ok(done) => intents_wait |= self.answer_fenced(callers.fenced, done),
            Err(error) => callers.fenced.into_iter().for_each(|caller| drop(caller.reply.send(Err(error.clone())))),
        }
        if intents_wait {
            self.deps.subscription.announce();
        }
    }

    /// Answers the callers of leader writes. Returns whether an intent now waits for another attempt.
    fn answer_fenced(&mut self, callers: Vec<FencedCaller>, done: FencedResults) -> bool {
        let mut intents_wait = false;
        let (mut starts, mut finishes) = (done.starts.into_iter(), done.finishes.into_iter());
        let mut postpones = done.postpones.into_iter();
        let mut ended = done.ended;
        ended.iter().for_each(|intent| self.report_ended(intent));
        for caller in callers {
            let starts: Vec<_> = starts.by_ref().take(caller.starts).collect();
            starts.iter().for_each(|started| self.report_started(started));
            let finishes_of_caller: Vec<_> = finishes.by_ref().take(caller.finishes.len()).collect();
            for (finish, result) in caller.finishes.iter().zip(&finishes_of_caller) {
                self.report_finished(finish, result);
                intents_wait |= finish.retries() && *result == Ok(FinishResult::Recorded);
            }
            let postpones: Vec<_> = postpones.by_ref().take(caller.postpones).collect();
            for result in &postpones {
                intents_wait |= matches!(result, Ok(FinishResult::Recorded));
                if let Err(error) = result {
                    self.report_failed_item(error);
                }
            }
            let ended = std::mem::take(&mut ended);
            let results = FencedResults { starts, finishes: finishes_of_caller, postpones, ended };
            let _caller_may_be_gone = caller.reply.send(Ok(results));
        }
        intents_wait
    }

    fn report_started(&mut self, started: &Result<StartResult, StoreError>) {
        match started {
            Ok(StartResult::Started { attempt, due, .. }) => {
                self.deps.metrics.attempt_started(attempt.started_at.since(*due))
            }
            Ok(StartResult::Ended(intent)) => self.report_ended(intent),
            Ok(StartResult::NotDue { .. } | StartResult::Paused | StartResult::Stale) => {}
            Err(error) => self.report_failed_item(error),
        }
    }

    fn report_finished(&mut self, finish: &FinishAttempt, result: &Result<FinishResult, StoreError>) {
        match result {
            Ok(FinishResult::RecordedAndCancelled) => {
                self.report_finished(&finish.cancelled(), &Ok(FinishResult::Recorded))
            }
            Ok(FinishResult::Recorded) => {
                self.deps.metrics.attempt_finished(finish);
                self.deps.watchers.publish(&finish.attempt.intent_id);
                if let Some(id) = finish.attempt.intent_id.submission_id() {
                    self.log_job(finish, id);
                }
                if !finish.retries() {
                    self.deps.intents_ended.notify_one();
                    if finish.attempt.contract.webhook.is_some() {
                        self.deps.pending_webhooks.notify_one();
                    }
                }
            }
            Ok(FinishResult::NotOpen) => {}
            Err(error) => self.report_failed_item(error),
        }
    }

    /// Reports an intent that ended without an attempt.
    fn report_ended(&mut self, intent: &Intent) {
        let event = match intent.state.exhausted_reason() {
            Some(ExhaustedReason::Cancelled) => "cancelled",
            _ => "expired",
        };
        log::debug!("intent_{event} intent_id={:?}", intent.id);
        if let Some(id) = intent.id.submission_id() {
            self.job_log.write(format!("job_{event}"), id);
        }
        self.deps.metrics.intent_ended(intent);
        self.deps.watchers.publish(&intent.id);
        self.deps.pending_webhooks.notify_one();
        self.deps.intents_ended.notify_one();
    }

    /// Logs the result of an attempt of a job, with the facts of the job.
    fn log_job(&mut self, finish: &FinishAttempt, id: SubmissionId) {
        let FinishAttempt { attempt, outcome, decision, .. } = finish;
        let (number, kind) = (attempt.attempt_number, outcome.kind());
        let event = format!("job_attempt_finished attempt={number} outcome={kind} decision={decision:?}");
        match &attempt.job {
            Some(facts) => log::info!("{event} {}", facts.tags(attempt.trace, Some(id))),
            None => self.job_log.write(event, id),
        }
    }

    /// Counts and logs an item that failed alone.
    fn report_failed_item(&self, error: &StoreError) {
        log::error!("write_failed store_error={error:?}");
        self.deps.metrics.store_failed(error.kind());
    }
}

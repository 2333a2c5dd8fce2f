//! Deliberate bugs, to show that the simulation finds bugs. A build for production has none of them.
//!
//! A test switches one of them on for its thread. The code asks `mutated!(Name)` where the bug would be; outside tests, the
//! compiler sees `false`.

use std::cell::Cell;

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// Writes of a leader do not check its term.
    NoFence,
    /// Writes of a leader check its term in a transaction of their own.
    FenceOutsideTransaction,
    /// A started attempt is sent although its term is not trusted any more.
    NoTrustBeforeCall,
    /// A renewal extends the trust from the moment of its answer.
    TrustFromAnswer,
    /// The lease is given away before it has expired.
    LeaseGivenEarly,
    /// Attempts are sent although their start was not committed.
    CallBeforeRecord,
    /// A failed commit is taken for a successful one.
    CommitErrorIgnored,
    /// A commit whose result is unknown is repeated, and the second result counts.
    UnknownCommitRepeated,
    /// Nobody is told that attempts may have been started on insert.
    NoDoubtReported,
    /// A new term does not close the attempts that earlier terms left open.
    NothingClosed,
    /// Closing an attempt leaves no record of it, and attempt numbers are counted from the records.
    NumbersFromHistory,
    /// A request without an answer is sent again under the same attempt number.
    CallRepeated,
    /// A postponed attempt uses up its number.
    PostponedKeepsNumber,
    /// The cursor of a refresh moves to the time of its answer.
    CursorSkips,
    /// A retry is scheduled although it is due after the deadline.
    RetryPastDeadline,
    /// An attempt may start after the deadline.
    StartPastDeadline,
    /// The deadline is not checked once more before the call.
    NoDeadlineBeforeCall,
    /// An acceptance counts after the deadline.
    LateAcceptance,
    /// The estimate of the store's time lags by as long as an answer took.
    StoreTimeLags,
    /// Attempts of a paused target start.
    StartWhilePaused,
    /// Attempts of a paused target start in the transaction that inserts the intent.
    InsertWhilePaused,
    /// An orderly stop releases the lease while attempts are in flight.
    ReleasedInFlight,
    /// Slots of attempts that were not started are never free again.
    SlotLost,
    /// Ids that differ in case are one intent.
    CaseIgnored,
    /// The same id with another payload is the same intent.
    PayloadNotCompared,
    /// The webhook event is written after the transaction that ends its intent.
    EventOutsideTransaction,
    /// A try that was interrupted counts as delivered.
    InterruptedIsDelivered,
    /// Webhook tries that a dead instance left open are not closed.
    TriesNotClosed,
    /// Retention deletes intents of any age.
    PurgeTooEarly,
    /// A request to cancel an intent after its attempt is lost when the next term closes that attempt.
    CancelLost,
    /// The first attempt does not wait for `notBefore`.
    NotBeforeIgnored,
    /// A deadline counts from the submission although the intent has a `notBefore`.
    DeadlineFromSubmission,
    /// A redrive forgets its position when the answer to a step is lost.
    RedriveForgetsPosition,
    /// A redrive advances its position although a step failed.
    RedriveLosesIntents,
    /// A redriven intent gets the id of the intent that it repeats as its `Idempotency-Key`, and not that of the first one.
    RedriveKeyChanged,
    /// A redrive goes on while it is paused and after it was cancelled.
    RedriveWhilePaused,
    /// A redrive includes intents whose gateway may have accepted them.
    UnknownRedriven,
    /// A page of the event feed that is full continues at the end of the feed.
    FeedSkipsPage,
    /// The end of the event feed is later than the last commit.
    FeedAheadOfCommits,
    /// Two inbox submissions with the same key are both stored.
    InboxKeyIgnored,
    /// A message is given to a contact of another client.
    ContactOfAnotherClient,
    /// A request that lost a race gets the id of a job that was not stored.
    JobGetsSecondId,
}

impl Mutation {
    pub const ALL: [Self; 42] = [
        Self::NoFence,
        Self::FenceOutsideTransaction,
        Self::NoTrustBeforeCall,
        Self::TrustFromAnswer,
        Self::LeaseGivenEarly,
        Self::CallBeforeRecord,
        Self::CommitErrorIgnored,
        Self::UnknownCommitRepeated,
        Self::NoDoubtReported,
        Self::NothingClosed,
        Self::NumbersFromHistory,
        Self::CallRepeated,
        Self::PostponedKeepsNumber,
        Self::CursorSkips,
        Self::RetryPastDeadline,
        Self::StartPastDeadline,
        Self::NoDeadlineBeforeCall,
        Self::LateAcceptance,
        Self::StoreTimeLags,
        Self::StartWhilePaused,
        Self::InsertWhilePaused,
        Self::ReleasedInFlight,
        Self::SlotLost,
        Self::CaseIgnored,
        Self::PayloadNotCompared,
        Self::EventOutsideTransaction,
        Self::InterruptedIsDelivered,
        Self::TriesNotClosed,
        Self::PurgeTooEarly,
        Self::CancelLost,
        Self::NotBeforeIgnored,
        Self::DeadlineFromSubmission,
        Self::RedriveForgetsPosition,
        Self::RedriveLosesIntents,
        Self::RedriveKeyChanged,
        Self::RedriveWhilePaused,
        Self::UnknownRedriven,
        Self::FeedSkipsPage,
        Self::FeedAheadOfCommits,
        Self::InboxKeyIgnored,
        Self::ContactOfAnotherClient,
        Self::JobGetsSecondId,
    ];
}

thread_local! {
    static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Whether one of these deliberate bugs is switched on.
pub fn is_active(mutations: &[Mutation]) -> bool {
    ACTIVE.get().is_some_and(|active| mutations.contains(&active))
}

/// Switches a deliberate bug on for this thread, or all of them off.
pub fn activate(mutation: Option<Mutation>) {
    ACTIVE.set(mutation);
}

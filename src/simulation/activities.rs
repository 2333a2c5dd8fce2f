//! What clients and operators do besides submitting intents: cancels, redrives, jobs, inbox submissions, and readers of
//! the event feed. [`draw`] draws it from the seed; [`run`] lets it happen.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;

use super::faults::Fault;
use super::fleet::Fleet;
use super::plan::{MOST_INTENTS, Scope, between, own_id, source};
use super::store::pass;
use super::targets::TARGETS;
use super::{cancels, inbox, jobs, readers, redrives};
use crate::domain::redrive::{RedriveChange, RedriveRate};

/// Something that a client or an operator does.
#[derive(Clone, Debug)]
pub(super) enum Activity {
    /// A client cancels an intent, and tries again while its attempt is in progress.
    Cancel { id: String, after_attempt: bool, tries: usize },
    /// An operator redrives an intent once it has failed, with another payload if `edited`.
    RedriveOne { id: String, edited: bool },
    /// An operator plans a redrive, and then changes it, with a pause before each change.
    RedriveMany { choice: Choice, include_unknown: bool, changes: Vec<(Duration, RedriveChange)> },
    /// A tenant submits a job. Jobs with the same key and variant are the same command.
    Job { key: usize, variant: usize, tries: usize },
    /// Somebody sends a submission to the inbox.
    Inbox(inbox::Sent),
    /// A reader follows the event feed until the end of the run.
    Read { followed: Followed, limit: usize, wait_seconds: u64 },
}

/// The intents that an operator chooses for a redrive.
#[derive(Clone, Debug)]
pub(super) enum Choice {
    All,
    Target(usize),
    Ids(Vec<String>),
}

/// The events that a reader wants.
#[derive(Clone, Copy, Debug)]
pub(super) enum Followed {
    Intents,
    Target(usize),
    Jobs,
}

impl Activity {
    /// The kind that switches it on.
    fn kind(&self) -> Fault {
        match self {
            Self::Cancel { .. } => Fault::Cancels,
            Self::RedriveOne { .. } | Self::RedriveMany { .. } => Fault::Redrives,
            Self::Job { .. } => Fault::Jobs,
            Self::Inbox(_) => Fault::Inbox,
            Self::Read { .. } => Fault::Readers,
        }
    }
}

/// Draws what clients and operators do in a run.
pub(super) fn draw(seed: u64, scope: &Scope, active: Duration, faults: &BTreeSet<Fault>) -> Vec<(Duration, Activity)> {
    let mut all = Vec::new();
    for (part, kind) in (400..).zip(Fault::ALL).filter(|(_, kind)| faults.contains(kind)) {
        let mut random = source(seed, part);
        match kind {
            Fault::Cancels => draw_cancels(&mut random, scope, active, &mut all),
            Fault::Redrives => draw_redrives(&mut random, scope, active, &mut all),
            Fault::Jobs => draw_jobs(&mut random, active, &mut all),
            Fault::Inbox => draw_inbox(&mut random, active, &mut all),
            Fault::Readers => draw_readers(&mut random, active, &mut all),
            _ => {}
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

type Drawn = Vec<(Duration, Activity)>;

/// Draws an intent of a client that is part of the run.
fn some_intent(random: &mut Rng, scope: &Scope) -> Option<String> {
    let number = random.usize(0..MOST_INTENTS);
    (scope.intents >> number & 1 == 1).then(|| own_id(number))
}

fn draw_cancels(random: &mut Rng, scope: &Scope, active: Duration, all: &mut Drawn) {
    for _ in 0..random.usize(3..=20) {
        let (at, id) = (active.mul_f64(random.f64()), some_intent(random, scope));
        let (after_attempt, tries) = (random.bool(), random.usize(1..=6));
        all.extend(id.map(|id| (at, Activity::Cancel { id, after_attempt, tries })));
    }
}

fn draw_redrives(random: &mut Rng, scope: &Scope, active: Duration, all: &mut Drawn) {
    for _ in 0..random.usize(0..=4) {
        let (at, id, edited) = (active.mul_f64(random.f64()), some_intent(random, scope), random.bool());
        // Sometimes two operators redrive the same intent.
        let operators = random.usize(1..=2);
        let one = id.map(|id| (at, Activity::RedriveOne { id, edited }));
        all.extend(one.into_iter().cycle().take(operators));
    }
    for _ in 0..random.usize(1..=3) {
        let at = active.mul_f64(0.2 + 0.8 * random.f64());
        let choice = match random.usize(0..4) {
            0 => Choice::Target(random.usize(0..TARGETS.len())),
            1 => Choice::Ids((0..10).filter_map(|_| some_intent(random, scope)).collect()),
            _ => Choice::All,
        };
        let include_unknown = random.bool();
        let rate = RedriveRate::new([2, 10, 1_000][random.usize(0..3)]).unwrap();
        let mut changes = vec![(between(random, 0, 2_000), RedriveChange::Start { rate })];
        for _ in 0..random.usize(0..=2) {
            changes.push((between(random, 20, 2_000), RedriveChange::Pause));
            changes.push((between(random, 500, 3_000), RedriveChange::Resume));
        }
        if random.f64() < 0.25 {
            changes.push((between(random, 20, 2_000), RedriveChange::Cancel));
        }
        all.push((at, Activity::RedriveMany { choice, include_unknown, changes }));
    }
}

fn draw_jobs(random: &mut Rng, active: Duration, all: &mut Drawn) {
    for key in 0..random.usize(2..=5) {
        let at = active.mul_f64(random.f64());
        for place in 0..random.usize(1..=3) {
            let at = if random.bool() { at } else { at + between(random, 0, 4_000) };
            let variant = usize::from(place > 0 && random.f64() < 0.3);
            all.push((at, Activity::Job { key, variant, tries: random.usize(1..=6) }));
        }
    }
}

fn draw_inbox(random: &mut Rng, active: Duration, all: &mut Drawn) {
    for number in 0..random.usize(3..=10) {
        let at = active.mul_f64(random.f64());
        let sent = inbox::Sent::draw(random, number);
        for _ in 0..random.usize(1..=2) {
            all.push((at, Activity::Inbox(sent.clone())));
        }
    }
}

fn draw_readers(random: &mut Rng, active: Duration, all: &mut Drawn) {
    for _ in 0..random.usize(1..=2) {
        let followed = match random.usize(0..4) {
            0 => Followed::Target(random.usize(0..TARGETS.len())),
            1 => Followed::Jobs,
            _ => Followed::Intents,
        };
        let limit = [1, 3, 10, 100][random.usize(0..4)];
        let wait_seconds = random.u64(0..=4);
        all.push((active.mul_f64(random.f64() * 0.5), Activity::Read { followed, limit, wait_seconds }));
    }
}

/// Lets an activity happen at its time.
pub(super) async fn run(fleet: Rc<Fleet>, at: Duration, activity: Activity) {
    pass(at).await;
    fleet.world.count(activity.kind());
    match activity {
        Activity::Cancel { id, after_attempt, tries } => cancels::cancel(&fleet, &id, after_attempt, tries).await,
        Activity::RedriveOne { id, edited } => redrives::redrive_one(&fleet, &id, edited).await,
        Activity::RedriveMany { choice, include_unknown, changes } => {
            redrives::redrive_many(&fleet, choice, include_unknown, changes).await;
        }
        Activity::Job { key, variant, tries } => jobs::submit(&fleet, key, variant, tries).await,
        Activity::Inbox(sent) => inbox::send(&fleet, sent).await,
        Activity::Read { followed, limit, wait_seconds } => {
            readers::follow(&fleet, followed, limit, wait_seconds).await;
        }
    }
}

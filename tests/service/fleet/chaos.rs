//! The chaos run: a fleet behind HAProxy under load and with many faults. At the end the records of clients, gateways and
//! the store are compared.
//!
//! It runs for a few seconds as part of the tests; `make chaos` runs it for longer. The seed determines the faults and what
//! clients send. `SM_CHAOS_SEED` repeats a run, `SM_CHAOS_SECONDS` sets its duration, and `SM_CHAOS_RUNS` the number of
//! runs, each with the next seed.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use serde_json::{Value, json};
use submission_manager::devtools::stand_in_gateway::StandIn;
use submission_manager::devtools::webhook_sink::Sink;
use submission_manager::domain::time::Timestamp;
use submission_manager::platform::clock::monotonic;
use tokio::time::Instant;

use super::evidence::Record;
use super::plan::{Fault, plan};
use super::readers::{Readers, all_events};
use super::{Fleet, SEATS};
use crate::sqlserver::{Proxy, TestDatabase};
use crate::support::{Answer, Api, PATIENCE, Site};

const CLIENTS: usize = 8;
/// The targets of [`write_registry`].
pub(super) const TARGETS: [&str; 6] = ["attempts-a", "once-a", "deadline-a", "attempts-b", "once-b", "deadline-b"];
/// The behaviours that clients request from the stand-in gateways.
const WISHES: [&str; 12] = [
    "accept",
    "accept",
    "accept",
    "slow:30",
    "slow:300",
    "fail:1",
    "fail",
    "hang",
    "lie",
    "garbage",
    "reject:invalid_recipient",
    "reject:provider_failure",
];
/// How soon another instance makes attempts after `kill -9`, in addition to the duration of the lease.
const AFTER_KILL: Duration = Duration::from_secs(2);
/// How soon another instance makes attempts after the lease was released.
const AFTER_STOP: Duration = Duration::from_secs(1);
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// The store of a run, and how to stall it.
enum Stall {
    File(std::path::PathBuf),
    Server(Proxy),
}

pub(super) struct Chaos {
    pub(super) fleet: Fleet,
    stall: Stall,
    pub(super) record: Record,
    /// A log of the faults.
    done: RefCell<Vec<String>>,
    pub(super) over: Cell<bool>,
}

#[actix::test]
async fn chaos_on_sqlite() {
    for seed in seeds() {
        let gateways = gateways();
        let mut site = Site::with_database(&gateways[0].url, None);
        site.lease_duration = Duration::from_secs(2);
        let stall = Stall::File(site.database());
        run(seed, "sqlite", site, gateways, stall, |_, _| ()).await;
    }
}

#[actix::test]
async fn chaos_on_sql_server() {
    for seed in seeds() {
        let Some(mut database) = TestDatabase::create() else { return };
        let stall = Stall::Server(database.behind_proxy());
        let gateways = gateways();
        let mut site = Site::with_database(&gateways[0].url, Some(database));
        site.lease_duration = Duration::from_secs(5);
        let clocks = site.directory.path().to_owned();
        let settings = move |seat: usize, command: &mut Command| {
            command.env("SM_STORE_TIMEOUT", "4s");
            if can_set_clocks() {
                command
                    .env("LD_PRELOAD", FAKETIME)
                    .env("FAKETIME_TIMESTAMP_FILE", clocks.join(clock_file(seat)))
                    .env("FAKETIME_NO_CACHE", "1")
                    .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            }
        };
        (0..SEATS).for_each(|seat| set_clock(&site, seat, 0));
        run(seed, "sql server", site, gateways, stall, settings).await;
    }
}

fn seeds() -> impl Iterator<Item = u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SM_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    first..first + number("SM_CHAOS_RUNS").unwrap_or(1)
}

/// Returns for how long faults are injected, and whether the run is long enough to check the promised failover times.
fn run_duration() -> (Duration, bool) {
    match std::env::var("SM_CHAOS_SECONDS").ok().and_then(|text| text.parse().ok()) {
        Some(seconds) => (Duration::from_secs(seconds), true),
        None => (Duration::from_secs(6), false),
    }
}

fn gateways() -> Vec<StandIn> {
    (0..2).map(|_| StandIn::start(true).unwrap()).collect()
}

async fn run(
    seed: u64,
    store: &str,
    site: Site,
    gateways: Vec<StandIn>,
    stall: Stall,
    settings: impl Fn(usize, &mut Command) + 'static,
) {
    let (duration, strict) = run_duration();
    let sink = Sink::start(Vec::new(), Box::new(|_| ())).unwrap();
    write_registry(&site, &gateways, &sink.url);
    let clocks = matches!(stall, Stall::Server(_)) && can_set_clocks();
    let clocks_said = if clocks { "clocks are set" } else { "clocks are not set" };
    let seconds = duration.as_secs();
    say(&format!(
        "chaos on {store}: seed {seed}, {seconds} s of faults, {clocks_said}; SM_CHAOS_SEED={seed} repeats it"
    ));
    let lease = site.lease_duration;
    let fleet = Fleet::start(site, gateways, move |seat, command| {
        command.env("SM_ATTEMPT_TIMEOUT", "1s").env("SM_SHUTDOWN_DELAY", "1s");
        // The default, because failover is measured with the shipped settings.
        command.env_remove("SM_ACQUIRE_INTERVAL");
        settings(seat, command);
    });
    fleet.proxy.until_up(SEATS).await;
    let chaos =
        Rc::new(Chaos { fleet, stall, record: Record::default(), done: RefCell::default(), over: Cell::new(false) });
    let load = join_all((0..CLIENTS as u64).map(|client| chaos.submit(Rng::with_seed(seed ^ (client << 32)), client)));
    let script = async {
        let failover = chaos.measure_failover().await;
        let mut under_way = Vec::new();
        for (pause, fault) in plan(seed, duration, lease, clocks) {
            wait(pause).await;
            under_way.push(actix::spawn(Rc::clone(&chaos).inflict(fault)));
        }
        for ended in join_all(under_way).await {
            ended.unwrap();
        }
        chaos.over.set(true);
        failover
    };
    let readers = Rc::new(Readers::default());
    let reading = {
        let (readers, url) = (Rc::clone(&readers), chaos.fleet.proxy.url.clone());
        actix::spawn(async move { readers.follow(&url).await })
    };
    let pause = chaos.pause_targets(Rng::with_seed(!seed));
    let redrive = chaos.redrive(Rng::with_seed(seed.rotate_left(16)));
    let (_, failover, (), (), ()) = tokio::join!(load, script, chaos.observe(Rng::with_seed(seed)), pause, redrive);
    let api = Api::new(&chaos.fleet.proxy.url);
    chaos.revive();
    chaos.fleet.proxy.until_up(SEATS).await;
    for target in TARGETS {
        // A stopped instance may have paused a target long after the request.
        chaos.call_until_answered(&api, &format!("/v1/targets/{target}/resume"), String::new()).await;
    }
    let redrives = chaos.until_redrives_have_ended(&api).await;
    api.until_nothing_is_pending().await;
    let all = all_events(&api).await;
    readers.until_seen(all.len()).await;
    assert!(!reading.is_finished(), "a reader got an answer that is not one of the faults");
    reading.abort();

    let evidence = chaos.fleet.evidence(&chaos.record).await;
    let evidence = evidence.with_events(sink.arrived().into_iter().map(|arrived| arrived.id));
    let Failover { after_kill, after_stop, drained } = failover;
    say(&format!("  {}", readers.summary()));
    say(&format!(
        "  {} intents answered, {} cancellations answered, {} intents redriven by {} redrives, {} attempts sent, \
         {} interrupted, {} events delivered, {} targets paused, {} terms; after kill -9 another instance executed in \
         {after_kill:?} (a lease of {lease:?}), after SIGTERM in {after_stop:?} once the lease was released \
         ({drained:?} later)\n  {}",
        chaos.record.len(),
        chaos.record.cancellations(),
        evidence.redriven(),
        redrives.len(),
        evidence.attempts_sent(),
        evidence.interrupted(),
        evidence.events(),
        chaos.record.pauses(),
        evidence.terms(),
        chaos.done.borrow().join("; ")
    ));
    let mut violations = evidence.violations();
    violations.extend(readers.violations(&all));
    violations.extend(evidence.missing_events(&all));
    violations.extend(evidence.violations_of_redrives(&redrives));
    assert!(
        violations.is_empty(),
        "seed {seed}: {} violations: {violations:#?}\n{:#?}",
        violations.len(),
        chaos.fleet.log_lines()
    );
    if strict {
        assert!(after_kill <= lease + AFTER_KILL, "seed {seed}: {after_kill:?} after kill -9");
        assert!(after_stop <= AFTER_STOP, "seed {seed}: {after_stop:?} after the lease was given back");
    }
    assert!(evidence.events() > 50, "hardly any event was delivered; the run shows nothing about webhooks");
    assert!(chaos.record.len() > 50, "hardly anything was submitted; the run shows nothing");
    assert!(chaos.record.cancellations() > 5, "hardly anything was cancelled; the run shows nothing about cancelling");
    assert!(evidence.redriven() > 5, "hardly anything was redriven; the run shows nothing about redrives");
}

/// How long no instance made attempts.
struct Failover {
    after_kill: Duration,
    after_stop: Duration,
    /// From SIGTERM until the lease was released, while attempts were under way.
    drained: Duration,
}

impl Chaos {
    /// A client: submits one intent after the other, and repeats each request until it is answered. Some intents start later,
    /// and some are cancelled at once.
    async fn submit(&self, mut rng: Rng, client: u64) {
        let api = Api::with_patience(&self.fleet.proxy.url, Duration::from_secs(3));
        let mut number = 0;
        let mut latest = None;
        let mut cancelled = None;
        while !self.over.get() {
            number += 1;
            let gateway = if rng.bool() { "a" } else { "b" };
            let policy = ["attempts", "once", "deadline"][rng.usize(0..3)];
            let wish = WISHES[rng.usize(0..WISHES.len())];
            let id = format!("{client}-{number}");
            let mut intent = json!({
                "intentId": id, "submissionTarget": format!("{policy}-{gateway}"),
                "payload": { "simulate": wish, "id": id },
            });
            if let Some(latest) = latest
                && rng.u8(0..8) == 0
            {
                let later: Timestamp = latest + Duration::from_millis(rng.u64(0..3000));
                intent["notBefore"] = json!(later.to_string());
            }
            let path = if rng.u8(0..10) == 0 { "/v1/intents?waitSeconds=1" } else { "/v1/intents" };
            let created = self.submit_until_answered(&api, path, &intent).await;
            latest = Some(created);
            if let Some(cancelled) = cancelled.take() {
                self.record.cancelled_before(cancelled, created);
            }
            if rng.u8(0..6) == 0 {
                cancelled = self.cancel(&api, &mut rng, id).await;
            }
            wait(Duration::from_millis(rng.u64(5..40))).await;
        }
        if let Some(cancelled) = cancelled {
            let witness = json!({ "intentId": format!("{client}-end"), "submissionTarget": "once-a" });
            let created = self.submit_until_answered(&api, "/v1/intents", &witness).await;
            self.record.cancelled_before(cancelled, created);
        }
    }

    /// Repeats a submission until it is answered. Returns when the intent was created.
    pub(super) async fn submit_until_answered(&self, api: &Api, path: &str, intent: &Value) -> Timestamp {
        let answer = self.call_until_answered(api, path, intent.to_string()).await.json();
        self.record.answered(&answer);
        Timestamp::parse(answer["createdAt"].as_str().unwrap()).unwrap()
    }

    /// Repeats a request until an instance answers it with success or with a conflict.
    pub(super) async fn call_until_answered(&self, api: &Api, path: &str, body: String) -> Answer {
        loop {
            match api.try_call("POST", path, body.clone().into_bytes()).await {
                Ok(answer) if answer.status.is_success() || answer.status == 409 => return answer,
                Ok(answer) => {
                    assert!([502, 503, 504].contains(&answer.status.as_u16()), "{}: {}", answer.status, answer.text());
                }
                Err(_) => {}
            }
            wait(Duration::from_millis(100)).await;
        }
    }

    /// Reads the histories of answered intents, and records those that have ended.
    async fn observe(&self, mut rng: Rng) {
        let api = Api::with_patience(&self.fleet.proxy.url, Duration::from_secs(1));
        while !self.over.get() {
            if let Some(id) = self.record.some_id(rng.usize(..))
                && let Ok(answer) = api.try_get(&format!("/v1/intents/{id}/history")).await
                && answer.status.is_success()
            {
                self.record.seen(&answer.json());
            }
            wait(Duration::from_millis(10)).await;
        }
    }

    /// Kills a leader, then stops one in an orderly way, without other faults meanwhile.
    async fn measure_failover(&self) -> Failover {
        let leader = self.fleet.some_leader().await;
        let killed = monotonic();
        self.fleet.seats[leader].kill();
        let after_kill = self.executed_after(killed, leader).await.duration_since(killed);
        self.fleet.sit(leader);
        self.fleet.proxy.until_up(SEATS).await;

        let leader = self.fleet.some_leader().await;
        let told = monotonic();
        let seat = &self.fleet.seats[leader];
        seat.signal("TERM");
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        let given_back = loop {
            pace.tick().await;
            if let Some(moment) = seat.logged_after(told, "leader_lost") {
                break moment;
            }
        };
        let after_stop = self.executed_after(given_back, leader).await.duration_since(given_back);
        assert_eq!(seat.ended().await, Some(0));
        self.fleet.sit(leader);
        self.fleet.proxy.until_up(SEATS).await;
        Failover { after_kill, after_stop, drained: given_back.duration_since(told) }
    }

    /// Returns when a gateway got an attempt after another instance than `gone` was ready to lead.
    async fn executed_after(&self, since: Instant, gone: usize) -> Instant {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        let looking = async {
            loop {
                pace.tick().await;
                let others = self.fleet.seats.iter().enumerate().filter(|(number, _)| *number != gone);
                let ready = others.filter_map(|(_, seat)| seat.logged_after(since, "leader_ready")).min();
                let Some(ready) = ready else { continue };
                let gateways = self.fleet.gateways.borrow();
                let first = gateways.iter().filter_map(|gateway| gateway.ledger.first_after(ready)).min();
                if let Some(first) = first {
                    return first;
                }
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("another instance executes")
    }

    async fn inflict(self: Rc<Self>, fault: Fault) {
        let done = match fault {
            Fault::Kill { leader, back_after } => match self.victim(leader).await {
                Some(victim) => {
                    self.fleet.seats[victim.0].kill();
                    wait(back_after).await;
                    self.fleet.sit(victim.0);
                    format!("killed a {}", role(leader))
                }
                None => format!("found no {} to kill", role(leader)),
            },
            Fault::Stop { leader } => match self.victim(leader).await {
                Some(victim) => {
                    self.fleet.seats[victim.0].signal("TERM");
                    let code = self.fleet.seats[victim.0].ended().await;
                    assert_eq!(code, Some(0), "an orderly stop");
                    self.fleet.sit(victim.0);
                    format!("stopped a {}", role(leader))
                }
                None => format!("found no {} to stop", role(leader)),
            },
            Fault::Pause { leader, duration } => match self.victim(leader).await {
                Some(victim) => {
                    self.fleet.seats[victim.0].signal("STOP");
                    wait(duration).await;
                    self.fleet.seats[victim.0].signal("CONT");
                    format!("paused a {} for {duration:?}", role(leader))
                }
                None => format!("found no {} to pause", role(leader)),
            },
            Fault::StallStore { duration } => {
                self.stall_store(duration).await;
                format!("stalled the store for {duration:?}")
            }
            Fault::GatewayDies { gateway, duration } => {
                let dying = self.fleet.gateways.borrow()[gateway].stop();
                dying.await;
                wait(duration).await;
                // Another fault may have restarted it meanwhile.
                if let Ok(again) = { self.fleet.gateways.borrow()[gateway].restarted() } {
                    self.fleet.gateways.borrow_mut()[gateway] = again;
                }
                format!("gateway {gateway} was dead for {duration:?}")
            }
            Fault::ClockJump { seat, seconds } => {
                set_clock(&self.fleet.site, seat, seconds);
                format!("set the clock of seat {seat} by {seconds} s")
            }
        };
        self.done.borrow_mut().push(done);
    }
}

/// A seat with a fault. It gets no other fault until this is dropped.
struct Victim<'a>(usize, &'a Fleet);

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        self.1.seats[self.0].taken.set(false);
    }
}

impl Chaos {
    /// Returns the leader's seat, or one of the others, unless it has a fault already.
    async fn victim(&self, leader: bool) -> Option<Victim<'_>> {
        let leading = self.fleet.leader().await;
        let free = |seat: &usize| !self.fleet.seats[*seat].taken.get() && self.fleet.seats[*seat].is_up();
        let seat = match leader {
            true => leading.filter(free),
            false => (0..SEATS).filter(|seat| Some(*seat) != leading).find(free),
        }?;
        self.fleet.seats[seat].taken.set(true);
        Some(Victim(seat, &self.fleet))
    }

    /// Restarts instances that have ended, as a supervisor would. An instance ends if it finds its store locked for too
    /// long at start.
    fn revive(&self) {
        for seat in 0..SEATS {
            if self.fleet.seats[seat].clear() {
                self.fleet.sit(seat);
                self.done.borrow_mut().push("an instance had given up".to_owned());
            }
        }
    }

    async fn stall_store(&self, duration: Duration) {
        match &self.stall {
            Stall::Server(proxy) => {
                proxy.stall(true);
                wait(duration).await;
                proxy.stall(false);
            }
            Stall::File(path) => {
                let path = path.clone();
                let locked = tokio::task::spawn_blocking(move || {
                    let connection = rusqlite::Connection::open(path).unwrap();
                    connection.busy_timeout(PATIENCE).unwrap();
                    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                    connection
                });
                let connection = locked.await.unwrap();
                wait(duration).await;
                connection.execute_batch("ROLLBACK").unwrap();
            }
        }
    }
}

fn role(leader: bool) -> &'static str {
    if leader { "leader" } else { "follower" }
}

/// Two gateways with three policies each. Attempts are few and short, so that a run ends.
fn write_registry(site: &Site, gateways: &[StandIn], sink: &str) {
    let mut targets = Vec::new();
    for (name, gateway) in ["a", "b"].iter().zip(gateways) {
        let mut target = |policy: &str, mut fields: Value| {
            let fixed = json!({
                "submissionTarget": format!("{policy}-{name}"), "gatewayType": "sms", "gatewayUrl": gateway.url,
                "terminalOutcomes": ["invalid_recipient"], "webhook": { "url": sink },
            });
            fields.as_object_mut().unwrap().extend(fixed.as_object().unwrap().clone());
            targets.push(fields);
        };
        target("attempts", json!({ "policy": "max_attempts", "maxAttempts": 3 }));
        target("once", json!({ "policy": "one_shot" }));
        target("deadline", json!({ "policy": "deadline", "maxAcceptanceSeconds": 8 }));
    }
    std::fs::write(site.registry(), json!({ "allowUnsignedWebhooks": true, "targets": targets }).to_string()).unwrap();
}

/// Whether the wall clock of a single instance can be set, with a library that fakes it. The embedded store uses the host's
/// clock, so there it cannot.
fn can_set_clocks() -> bool {
    std::path::Path::new(FAKETIME).exists()
}

fn clock_file(seat: usize) -> String {
    format!("clock-{seat}")
}

fn set_clock(site: &Site, seat: usize, seconds: i64) {
    std::fs::write(site.directory.path().join(clock_file(seat)), format!("{seconds:+}\n")).unwrap();
}

/// Paces load and faults. No assertion depends on it.
pub(super) async fn wait(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Prints directly to standard error, because the test runner hides the output of tests that pass.
fn say(text: &str) {
    let _nobody_may_listen = writeln!(std::io::stderr(), "{text}");
}

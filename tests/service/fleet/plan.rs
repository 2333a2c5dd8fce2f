//! The faults of a chaos run and their times. They are drawn from a seed, so that a run can be repeated.

use std::time::Duration;

use fastrand::Rng;

use super::SEATS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// `kill -9`, and a new instance after a while.
    Kill {
        leader: bool,
        back_after: Duration,
    },
    /// `SIGTERM`, and a new instance when it has ended.
    Stop {
        leader: bool,
    },
    /// `SIGSTOP`, and `SIGCONT` later. For a leader that is after the end of its lease.
    Pause {
        leader: bool,
        duration: Duration,
    },
    /// The database does not answer.
    StallStore {
        duration: Duration,
    },
    GatewayDies {
        gateway: usize,
        duration: Duration,
    },
    /// The wall clock of one instance is set.
    ClockJump {
        seat: usize,
        seconds: i64,
    },
}

/// Faults with the pause before each.
pub(super) fn plan(seed: u64, duration: Duration, lease: Duration, clocks: bool) -> Vec<(Duration, Fault)> {
    let mut rng = Rng::with_seed(seed);
    let mut plan = Vec::new();
    let mut total = Duration::ZERO;
    while total < duration {
        let pause = millis(&mut rng, 200, 1200);
        total += pause;
        plan.push((pause, fault(&mut rng, lease, clocks)));
    }
    plan
}

fn fault(rng: &mut Rng, lease: Duration, clocks: bool) -> Fault {
    let leader = rng.bool();
    match rng.u8(0..if clocks { 7 } else { 6 }) {
        0 | 1 => Fault::Kill { leader, back_after: millis(rng, 0, 1000) },
        2 => Fault::Stop { leader },
        3 => {
            let past_the_lease = if leader { lease } else { Duration::ZERO };
            Fault::Pause { leader, duration: past_the_lease + millis(rng, 100, 1500) }
        }
        4 => Fault::StallStore { duration: millis(rng, 100, 3000) },
        5 => Fault::GatewayDies { gateway: rng.usize(0..2), duration: millis(rng, 100, 2000) },
        _ => Fault::ClockJump { seat: rng.usize(0..SEATS), seconds: rng.i64(-7200..7200) },
    }
}

fn millis(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(rng.u64(least..most))
}

#[test]
fn the_same_seed_makes_the_same_plan() {
    let of = |seed| plan(seed, Duration::from_secs(60), Duration::from_secs(2), true);
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

//! Shrinks a failing run to fewer kinds of faults, instances and intents.

use super::checks::Promise;
use super::plan::{MOST_INTENTS, Plan, Scope};
use super::run::{Report, run};

/// Returns the smallest run found in which the same promise is broken.
pub(super) fn shrink(failed: Report) -> Report {
    let Some((promise, _)) = failed.violation else { return failed };
    let mut search = Search { promise, best: failed };
    search.drop_faults();
    search.drop_instances();
    search.drop_intents();
    // With fewer intents, fewer faults may be enough.
    search.drop_faults();
    search.best
}

struct Search {
    promise: Promise,
    best: Report,
}

impl Search {
    /// Runs a smaller part of the seed, and keeps it if the same promise is broken.
    fn try_scope(&mut self, scope: &Scope) {
        let report = run(self.best.seed, scope);
        if report.violation.as_ref().is_some_and(|(promise, _)| *promise == self.promise) {
            self.best = report;
        }
    }

    fn drop_faults(&mut self) {
        for fault in Plan::draw(self.best.seed, &self.best.scope).faults {
            let mut scope = self.best.scope.clone();
            scope.without.insert(fault);
            self.try_scope(&scope);
        }
    }

    fn drop_instances(&mut self) {
        let most = Plan::draw(self.best.seed, &self.best.scope).instances;
        for instances in (1..most).rev() {
            self.try_scope(&Scope { instances, ..self.best.scope.clone() });
        }
    }

    /// Tries to remove groups of submissions, in ever smaller groups.
    fn drop_intents(&mut self) {
        let mut group = MOST_INTENTS / 2;
        while group > 0 {
            for first in (0..MOST_INTENTS).step_by(group) {
                let mask = (u64::MAX >> (MOST_INTENTS - group)) << first;
                let intents = self.best.scope.intents & !mask;
                if intents != self.best.scope.intents {
                    self.try_scope(&Scope { intents, ..self.best.scope.clone() });
                }
            }
            group /= 2;
        }
    }
}

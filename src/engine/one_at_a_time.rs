//! A query of an actor that runs one at a time, and is repeated if it was requested again while it ran.

/// Whether the query runs, and whether it was requested again while it ran.
#[derive(Default)]
pub(super) struct OneAtATime {
    running: bool,
    again: bool,
}

impl OneAtATime {
    /// Requests the query. Returns whether to run it now; otherwise it is run again after the one that runs.
    pub(super) fn request(&mut self) -> bool {
        if self.running {
            self.again = true;
            return false;
        }
        self.running = true;
        self.again = false;
        true
    }

    /// The query ended. Returns whether it was requested again while it ran.
    pub(super) fn finish(&mut self) -> bool {
        self.running = false;
        std::mem::take(&mut self.again)
    }

    /// Makes [`OneAtATime::finish`] return true.
    pub(super) fn repeat(&mut self) {
        self.again = true;
    }

    pub(super) fn is_running(&self) -> bool {
        self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_while_the_query_runs_repeats_it_once() {
        let mut query = OneAtATime::default();
        assert!(query.request(), "nothing runs");
        assert!(!query.request() && !query.request(), "one runs");
        assert!(query.finish(), "it was asked for meanwhile");
        assert!(query.request());
        assert!(!query.finish(), "nobody asked again");
    }
}

//! Reports every few seconds that this instance runs, so that the console of every instance shows the whole fleet. Nothing
//! depends on the reports: one that fails is made again with the next one.

use std::sync::Arc;
use std::time::Duration;

use super::leader::LeadershipBoard;
use crate::store::client::StoreClient;
use crate::store::{InstanceReport, LeaderReport};
use crate::telemetry::metrics::Metrics;

/// How often an instance reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// How long an instance that stops waits for its report to be withdrawn.
const FORGET_BUDGET: Duration = Duration::from_secs(1);

/// Reports one instance.
#[derive(Clone)]
pub struct InstanceReporter {
    instance_id: String,
    store: StoreClient,
    board: LeadershipBoard,
    metrics: Arc<Metrics>,
}

impl InstanceReporter {
    pub fn new(store: StoreClient, board: LeadershipBoard, metrics: Arc<Metrics>) -> Self {
        Self { instance_id: format!("{:032x}", fastrand::u128(..)), store, board, metrics }
    }

    /// Reports until the task is aborted.
    pub async fn run(self) {
        let mut fails = false;
        loop {
            let result = self.store.record_instance(self.report()).await;
            if let Err(error) = &result
                && !fails
            {
                let next =
                    "the console shows this instance as missing until a report succeeds; nothing else is affected";
                log::warn!("instance_report_failed store_error={error:?} next={next:?}");
            }
            fails = result.is_err();
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    }

    /// Withdraws the report of an instance that stops in order.
    pub async fn forget(&self) {
        let forgotten = self.store.forget_instance(self.instance_id.clone());
        if !matches!(tokio::time::timeout(FORGET_BUDGET, forgotten).await, Ok(Ok(()))) {
            log::info!("instance_report_left next=\"the console shows the instance as missing for an hour\"");
        }
    }

    fn report(&self) -> InstanceReport {
        let leading = self.board.lease().map(|_| LeaderReport {
            waiting: u64::try_from(self.metrics.queue_depth.get()).unwrap_or_default(),
            holds: self.board.holds(),
        });
        InstanceReport {
            instance_id: self.instance_id.clone(),
            holder_id: self.board.holder_id.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            submitted: self.metrics.intents_created.get(),
            leading,
        }
    }
}

//! The operators of a chaos run: they pause targets, cancel intents and redrive failed ones while faults are injected.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use submission_manager::domain::time::Timestamp;

use super::chaos::{Chaos, TARGETS, wait};
use super::evidence::{Cancelled, Pause, RedriveRecord};
use crate::support::Api;

impl Chaos {
    /// Pauses each target once, one after the other, and resumes it after a while.
    pub(super) async fn pause_targets(&self, mut rng: Rng) {
        let api = self.patient_api();
        let mut targets = TARGETS;
        rng.shuffle(&mut targets);
        for (number, target) in targets.into_iter().enumerate().take_while(|_| !self.over.get()) {
            let pause = self.call_until_answered(&api, &format!("/v1/targets/{target}/pause"), String::new()).await;
            let from = Timestamp::parse(pause.json()["pausedAt"].as_str().unwrap()).unwrap();
            wait(Duration::from_millis(rng.u64(100..1500))).await;
            // The creation of a new intent shows the store's time.
            let witness = json!({ "intentId": format!("witness-{number}"), "submissionTarget": target });
            let until = self.submit_until_answered(&api, "/v1/intents", &witness).await;
            self.record.paused(Pause { target: target.to_owned(), from, until });
            self.call_until_answered(&api, &format!("/v1/targets/{target}/resume"), String::new()).await;
        }
    }

    /// Cancels an intent. Returns what the answer promises; `None` if the request was refused.
    pub(super) async fn cancel(&self, api: &Api, rng: &mut Rng, id: String) -> Option<Cancelled> {
        let path = format!("/v1/intents/{id}/cancel?afterAttempt={}", rng.bool());
        let answer = self.call_until_answered(api, &path, String::new()).await;
        let may_have_been_sent = answer.json()["mayHaveBeenSent"] == true;
        match answer.status.as_u16() {
            200 => Some(Cancelled::Now { id, may_have_been_sent }),
            202 => Some(Cancelled::AfterAttempt { id }),
            _ => None,
        }
    }

    /// Redrives what failed lately, one redrive after the other. Some are paused for a while, and some are cancelled.
    pub(super) async fn redrive(&self, mut rng: Rng) {
        let api = self.patient_api();
        while !self.over.get() {
            wait(Duration::from_millis(rng.u64(200..800))).await;
            let Some(latest) = self.record.latest() else { continue };
            let since = Timestamp::from_micros(latest.micros() - 3_000_000);
            let plan = json!({
                "filter": { "submissionTarget": TARGETS[rng.usize(0..TARGETS.len())], "createdAfter": since.to_string() },
                "includeUnknownOutcome": rng.bool(),
            });
            let plan = self.call_until_answered(&api, "/v1/redrives", plan.to_string()).await.json();
            if plan["count"] == 0 {
                continue;
            }
            let path = format!("/v1/redrives/{}", plan["redriveId"].as_str().unwrap());
            let change = async |change: &str, body: String| {
                self.call_until_answered(&api, &format!("{path}/{change}"), body).await;
            };
            change("start", json!({ "ratePerSecond": rng.u64(20..400) }).to_string()).await;
            match rng.u8(0..4) {
                0 => {
                    change("pause", String::new()).await;
                    wait(Duration::from_millis(rng.u64(50..500))).await;
                    change("resume", String::new()).await;
                }
                1 => change("cancel", String::new()).await,
                _ => {}
            }
        }
    }

    /// Waits until no redrive runs, and returns all that were started.
    pub(super) async fn until_redrives_have_ended(&self, api: &Api) -> Vec<RedriveRecord> {
        let mut started = Vec::new();
        for redrive in pages(api, "/v1/redrives?", "redrives").await {
            let path = format!("/v1/redrives/{}", redrive["redriveId"].as_str().unwrap());
            if redrive["state"] == "planned" {
                continue;
            }
            let ended = |state: &Value| state == "completed" || state == "cancelled";
            let redrive = api.until(&path, |answer| answer.status.is_success() && ended(&answer.json()["state"])).await;
            let id = redrive.json()["redriveId"].as_str().unwrap().to_owned();
            let created = pages(api, &format!("/v1/intents?redriveId={id}&"), "intents").await;
            started.push(RedriveRecord::of(&redrive.json(), created.len()));
        }
        started
    }

    fn patient_api(&self) -> Api {
        Api::with_patience(&self.fleet.proxy.url, Duration::from_secs(3))
    }
}

/// All items of a list of the API.
async fn pages(api: &Api, path: &str, field: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    loop {
        let mut page = api.get(&format!("{path}limit=100{cursor}")).await.json();
        let Value::Array(of_page) = page[field].take() else { panic!("no {field} in {page}") };
        items.extend(of_page);
        let Some(next) = page["nextCursor"].as_str() else { return items };
        cursor = format!("&cursor={next}");
    }
}

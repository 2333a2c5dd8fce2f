//! Replaces every instance under load: no client notices. If `SM_TEST_PREVIOUS_BINARY` names the binary of an earlier
//! version, the fleet starts with that one and is upgraded: `make upgrade`.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use submission_manager::devtools::stand_in_gateway::StandIn;

use super::evidence::Record;
use super::{Fleet, SEATS};
use crate::support::{Api, BINARY, Site};

#[actix::test]
async fn replacing_every_instance_under_load_fails_no_request_and_interrupts_no_attempt() {
    let gateway = StandIn::start(true).unwrap();
    let mut site = Site::new(&gateway.url);
    site.lease_duration = Duration::from_secs(15);
    if let Some(previous) = std::env::var_os("SM_TEST_PREVIOUS_BINARY") {
        site.binary = previous.into();
    }
    let mut fleet = Fleet::start(site, vec![gateway], |_, command| {
        // The default, which is longer than the shipped configuration of HAProxy needs.
        command.env_remove("SM_SHUTDOWN_DELAY");
    });
    fleet.proxy.until_up(SEATS).await;
    fleet.site.binary = BINARY.into();
    let (record, over) = (Record::default(), Cell::new(false));
    let clients = join_all((0..8).map(|client| {
        let (fleet, record, over) = (&fleet, &record, &over);
        async move {
            let api = Api::new(&fleet.proxy.url);
            let mut number = 0;
            while !over.get() {
                number += 1;
                let id = format!("{client}-{number}");
                // Some clients wait for the outcome, others submit and read it later.
                let query = if client % 2 == 0 { "?waitSeconds=5" } else { "" };
                let answer = api.submit(&id, "attempts", json!({ "simulate": "slow:50" }), query).await;
                assert_eq!(answer.status.as_u16(), 200, "{}", answer.text());
                record.answered(&answer.json());
                let history = api.get(&format!("/v1/intents/{id}/history")).await;
                assert_eq!(history.status.as_u16(), 200, "{}", history.text());
                record.seen(&history.json());
            }
        }
    }));
    let replace = async {
        for (number, seat) in fleet.seats.iter().enumerate() {
            seat.signal("TERM");
            assert_eq!(seat.ended().await, Some(0));
            fleet.sit(number);
            fleet.proxy.until_up(SEATS).await;
        }
        over.set(true);
    };
    tokio::join!(clients, replace);
    Api::new(&fleet.proxy.url).until_nothing_is_pending().await;
    let evidence = fleet.evidence(&record).await;
    evidence.hold();
    assert_eq!(evidence.interrupted(), 0, "{:#?}", fleet.log_lines());
    assert!(evidence.terms() > 1, "the leader was never replaced");
}

#[actix::test]
async fn a_follower_accepts_intents_and_waits_for_their_outcome() {
    let gateway = StandIn::start(true).unwrap();
    let fleet = Fleet::start(Site::new(&gateway.url), vec![gateway], |_, _| ());
    fleet.proxy.until_up(SEATS).await;
    let leader = fleet.some_leader().await;
    for (number, seat) in fleet.seats.iter().enumerate() {
        let answer = seat.api().submit(&format!("seat-{number}"), "once", json!({}), "?waitSeconds=30").await;
        assert_eq!(answer.json()["status"], "accepted", "seat {number}, while {leader} leads");
    }
    for (number, seat) in fleet.seats.iter().enumerate() {
        let ready = seat.api().get("/readyz").await.text();
        let mode = if number == leader { "mode=leader holder_id=seat-" } else { "mode=follower holder_id=seat-" };
        assert!(ready.starts_with(mode), "{ready}");
    }
}

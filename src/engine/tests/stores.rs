//! How the engine copes with a store that is slow or refuses writes, and how it purges old intents.

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::domain::audit::NewAuditEntry;
use crate::store::AuditStore;

const BUDGET: Duration = Duration::from_secs(5);

#[actix::test]
async fn a_client_waits_no_longer_than_the_budget_for_queue_and_store_together() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    instance.faults.add("submit", 1, Fault::SlowAnswer(60 * SECOND));
    let submit = async |id: &'static str, after: Duration| {
        if !after.is_zero() {
            pass(after).await;
        }
        let start = monotonic();
        let answer = instance.engine.store.submit(new_intent(id, &one_shot(), b"{}")).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{id}: {answer:?}");
        monotonic().duration_since(start)
    };
    let (started, queued, later) =
        tokio::join!(submit("started", Duration::ZERO), submit("queued", SECOND), submit("later", 4 * SECOND));
    for waited in [started, queued, later] {
        assert!(waited >= BUDGET && waited < BUDGET + SECOND, "{waited:?}");
    }
    pass(60 * SECOND).await;
    let find = async |id| instance.engine.store.find(intent_id(id)).await.unwrap();
    assert!(find("started").await.is_some(), "the write that had started took effect");
    assert!(
        find("queued").await.is_none() && find("later").await.is_none(),
        "writes that had not started were not made"
    );
    instance.submit("after", &one_shot()).await;
    instance.until_terminal("after").await;
}

#[actix::test]
async fn an_instance_is_ready_only_while_writes_succeed() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let store = &instance.engine.store;
    instance.submit("a", &one_shot()).await;
    instance.faults.add("probe", 3, Fault::Fail);
    assert_eq!(store.can_write().await, Ok(()));
    assert_eq!(instance.faults.left("probe"), 3, "a recent commit makes a probe unnecessary");
    pass(3 * SECOND).await;
    assert_eq!(store.can_write().await, Ok(()), "one failure is forgiven");
    assert_eq!(store.can_write().await, Ok(()));
    assert_eq!(instance.faults.left("probe"), 2, "the answer of a probe is shared");
    pass(SECOND).await;
    assert!(matches!(store.can_write().await, Err(StoreError::Unavailable(_))));
    pass(SECOND).await;
    assert!(matches!(store.can_write().await, Err(StoreError::Unavailable(_))));
    assert_eq!(instance.faults.left("probe"), 0);
    pass(SECOND).await;
    assert_eq!(store.can_write().await, Ok(()), "one success makes it ready again");
}

#[actix::test]
async fn all_old_intents_are_purged_and_recent_ones_are_kept() {
    const OLD: usize = 100;
    const KEEP: Duration = Duration::from_secs(120);
    let lab = Lab::new();
    let retention = LeaderSettings { retention: Some(KEEP), ..settings() };
    let instance = lab.start(retention, always(accepted()));
    instance.lease_after(0).await;
    for n in 0..OLD {
        instance.submit(&format!("old{n}"), &one_shot()).await;
    }
    instance.until_terminal(&format!("old{}", OLD - 1)).await;
    pass(KEEP + 60 * SECOND).await;
    instance.submit("recent", &one_shot()).await;
    instance.until_terminal("recent").await;
    pass(60 * SECOND).await;
    assert_eq!(instance.engine.metrics.intents_purged.get(), OLD as u64);
    let left = lab.store().list(crate::store::ListQuery { limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(left.intents.iter().map(|intent| intent.id.as_str()).collect::<Vec<_>>(), ["recent"]);
}

#[actix::test]
async fn old_entries_of_the_audit_log_are_purged_unless_their_chain_is_broken() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let actions = async |lab: &Lab| {
        let entries = lab.store().audit_chain(0, 10).await.unwrap().entries;
        entries.into_iter().map(|entry| (entry.id, entry.action)).collect::<Vec<_>>()
    };
    tokio::time::pause();
    for broken in [false, true] {
        let lab = Lab::with_paused_clock();
        let past = WallClock::from_fn(|| Timestamp::from_micros(BASE) - 4 * DAY);
        let past = SqliteStore::open(&lab.path(), past).unwrap();
        for _ in 0..3 {
            past.append_audit(NewAuditEntry::sign_out(&somebody())).await.unwrap();
        }
        if broken {
            let file = Connection::open(lab.path()).unwrap();
            file.execute("UPDATE submission_audit_log SET subject = 'x' WHERE entry_id = 2", []).unwrap();
        }
        let retention = LeaderSettings { audit_retention: Some(2 * DAY), ..settings() };
        let instance = lab.start(retention, always(accepted()));
        instance.engine.store.append_audit(NewAuditEntry::sign_out(&somebody())).await.unwrap();
        instance.lease_after(0).await;
        pass(60 * SECOND).await;
        let left = actions(&lab).await;
        let left: Vec<_> = left.iter().map(|(id, action)| (*id, action.as_str())).collect();
        match broken {
            false => assert_eq!(left, [(4, "sign_out"), (5, "purge_audit_log")]),
            true => assert_eq!(left.len(), 4, "nothing is deleted: {left:?}"),
        }
    }
}

//! Copies into a SQL Server.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::domain::intent::IntentId;
use crate::store::copy::tests::{assert_all_listed, copy, filled_source, interrupted_copy};
use crate::store::selection::StoreChoice;

/// The names of the columns that a migration gives to its tables.
fn columns_of(migration: &str, schema: &mut BTreeMap<String, BTreeSet<String>>) {
    let first_word = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let is_name =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
    let mut table = None;
    for line in migration.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("CREATE TABLE ") {
            table = Some(first_word(rest));
        } else if line.starts_with(')') {
            table = None;
        } else if let Some(rest) = line.strip_prefix("ALTER TABLE ") {
            table = Some(first_word(rest));
        }
        let added = line.split_once("ADD ").map(|(_, column)| first_word(column));
        let column = added.unwrap_or_else(|| first_word(line));
        if let Some(table) = table.as_ref().filter(|_| is_name(&column)) {
            schema.entry(table.clone()).or_default().insert(column);
        }
    }
}

#[test]
fn every_table_and_column_of_sql_server_is_copied() {
    let mut schema = BTreeMap::new();
    for migration in migrate::MIGRATIONS.iter().chain([&migrate::MAKE_VERSIONS]) {
        columns_of(migration, &mut schema);
    }
    assert!(schema["submission_target_pauses"].contains("paused_by"), "{schema:?}");
    assert_all_listed(&schema);
}

async fn target() -> Option<(TestDatabase, StoreChoice)> {
    let database = TestDatabase::create().await?;
    let choice = StoreChoice::SqlServer(Box::new(settings(&database.server, &database.name)));
    Some((database, choice))
}

#[tokio::test]
async fn a_sqlite_store_is_copied_also_in_two_steps_and_into_another_server() {
    let Some((database, to)) = target().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = filled_source(&folder.path().join("from.db"));
    interrupted_copy(&from, &to, 1500).await;
    copy(&from, &to).await.unwrap();
    let store = database.store();
    let history = async |id: &str| store.history(IntentId::parse(id).unwrap()).await.unwrap().unwrap();
    assert_eq!(history("id-3000").await.attempts.len(), 1);
    let query = ListQuery { prefix: Some("message 3000".to_owned()), limit: 10, ..ListQuery::default() };
    let found = store.list(query).await.unwrap().intents;
    assert_eq!(found.iter().map(|intent| intent.id.as_str()).collect::<Vec<_>>(), ["id-3000"], "by its message id");
    // The next term is above the one that left an attempt open, and numbers of deleted intents are not used again.
    let lease = store.acquire_lease("lease".into(), "me".into(), Duration::from_secs(600)).await.unwrap().unwrap();
    let open = store.open_attempts_before(lease.term.epoch, 10).await.unwrap();
    assert_eq!(open.iter().map(|attempt| attempt.intent_id.as_str()).collect::<Vec<_>>(), ["id-5"]);
    let Submitted::Created(new) = submit_to(&store, new_intent("new", &one_shot(), b"")).await else { panic!() };
    assert!(new.seq.0 > 5_000_000, "{new:?}");
    store.release_lease(lease.term).await.unwrap();

    let Some((_other, other)) = target().await else { return };
    copy(&to, &other).await.unwrap();
}

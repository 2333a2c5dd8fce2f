//! A cache of contracts and their numbers in the database. It never becomes outdated, because these rows never change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;
use sha2::{Digest, Sha256};

use super::database::{Batch, Database};
use super::rows;
use super::script::Values;
use crate::domain::contract::{Contract, ContractSnapshot};
use crate::domain::schedule::{GatewayId, Lane, LaneId};
use crate::store::StoreError;

#[derive(Clone, Default)]
pub(super) struct Contracts(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    ids: HashMap<Arc<str>, ContractRow>,
    by_id: HashMap<i64, Arc<Contract>>,
}

/// The row of a contract. Its number is also the number of its lane.
#[derive(Clone)]
pub(super) struct ContractRow {
    pub lane: Arc<Lane>,
}

impl Contracts {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a contract to the cache as if it were in the database.
    #[cfg(test)]
    pub(super) fn learn(&self, snapshot: &ContractSnapshot, row: ContractRow) {
        let mut known = self.lock();
        known.by_id.insert(row.lane.id.0, Arc::clone(&snapshot.contract));
        known.ids.insert(Arc::clone(&snapshot.json), row);
    }

    /// Returns the row of a contract, and inserts it if the contract is new.
    pub(super) async fn row(
        &self,
        database: &Database,
        snapshot: &ContractSnapshot,
    ) -> Result<ContractRow, StoreError> {
        if let Some(row) = self.lock().ids.get(&snapshot.json) {
            return Ok(row.clone());
        }
        let contract = &snapshot.contract;
        let url = contract.gateway_url.as_str();
        let batch = ensure_contract(url, &snapshot.json, contract.target.as_str());
        let results = database.run(batch).await?;
        let row = results.iter().flatten().next().ok_or_else(|| missing("contract"))?;
        let id = rows::need(row, "contract_id")?;
        let gateway = GatewayId(rows::need(row, "gateway_id")?);
        if let Some(webhook) = &contract.webhook {
            database.run(ensure_receiver(webhook.url.origin(), id)).await?;
        }
        let row = ContractRow { lane: Arc::new(Lane { id: LaneId(id), gateway, target: contract.target.clone() }) };
        self.lock().ids.insert(Arc::clone(&snapshot.json), row.clone());
        Ok(row)
    }

    /// Returns the contracts with these numbers. Contracts that this program cannot read are left out and logged.
    pub(super) async fn by_id(
        &self,
        database: &Database,
        ids: impl Iterator<Item = i64>,
    ) -> Result<HashMap<i64, Arc<Contract>>, StoreError> {
        let mut wanted: HashMap<i64, Option<Arc<Contract>>> = HashMap::new();
        {
            let known = self.lock();
            wanted.extend(ids.map(|id| (id, known.by_id.get(&id).cloned())));
        }
        let unknown: Vec<_> =
            wanted.iter().filter(|(_, known)| known.is_none()).map(|(id, _)| json!({ "id": id })).collect();
        if !unknown.is_empty() {
            let results = database.run(contracts(unknown)).await?;
            let mut known = self.lock();
            for row in results.iter().flatten() {
                let id: i64 = rows::need(row, "contract_id")?;
                match rows::contract(row) {
                    Ok(contract) => {
                        let contract = Arc::new(contract);
                        known.by_id.insert(id, Arc::clone(&contract));
                        wanted.insert(id, Some(contract));
                    }
                    Err(error) => log::error!("contract_unreadable contract_id={id} store_error={error:?}"),
                }
            }
        }
        Ok(wanted.into_iter().filter_map(|(id, contract)| Some((id, contract?))).collect())
    }
}

/// Builds the batch that inserts a contract, if there is none with its hash, and returns its row. It runs in a
/// transaction of its own, because a contract that no intent uses does no harm.
pub(super) fn ensure_contract(url: &str, snapshot: &str, target: &str) -> Batch {
    let mut values = Values::default();
    let (url_hash, hash) = (values.hash(&sha256(url)), values.hash(&sha256(snapshot)));
    let (url, snapshot, target) = (values.text(url), values.text(snapshot), values.text(target));
    values.batch(format!(
        "
INSERT INTO submission_gateways (url_sha256, gateway_url)
SELECT {url_hash}, {url} WHERE NOT EXISTS (SELECT 1 FROM submission_gateways WHERE url_sha256 = {url_hash});
INSERT INTO submission_contracts (snapshot_sha256, gateway_id, submission_target, snapshot)
SELECT {hash}, g.gateway_id, {target}, {snapshot} FROM submission_gateways AS g
WHERE g.url_sha256 = {url_hash} AND NOT EXISTS (SELECT 1 FROM submission_contracts WHERE snapshot_sha256 = {hash});
IF @@ROWCOUNT > 0 INSERT INTO submission_contract_uses (contract_id, first_used_at)
    SELECT c.contract_id, SYSUTCDATETIME() FROM submission_contracts AS c WHERE c.snapshot_sha256 = {hash};
SELECT contract_id, gateway_id FROM submission_contracts WHERE snapshot_sha256 = {hash};"
    ))
}

/// Builds the batch that inserts the webhook receiver of a contract, if it is missing.
pub(super) fn ensure_receiver(origin: &str, contract_id: i64) -> Batch {
    let mut values = Values::default();
    let hash = values.hash(&sha256(origin));
    let (origin, contract) = (values.text(origin), values.number(contract_id));
    values.batch(format!(
        "
INSERT INTO submission_webhook_receivers (origin_sha256, origin)
SELECT {hash}, {origin} WHERE NOT EXISTS (SELECT 1 FROM submission_webhook_receivers WHERE origin_sha256 = {hash});
INSERT INTO submission_contract_receivers (contract_id, receiver_id)
SELECT {contract}, r.receiver_id FROM submission_webhook_receivers AS r
WHERE r.origin_sha256 = {hash}
    AND NOT EXISTS (SELECT 1 FROM submission_contract_receivers WHERE contract_id = {contract});"
    ))
}

/// Builds the query for contracts by their numbers.
pub(super) fn contracts(ids: Vec<serde_json::Value>) -> Batch {
    let mut values = Values::default();
    let ids = values.json(ids);
    values.batch(format!(
        "
SELECT c.contract_id, c.snapshot FROM OPENJSON({ids}) WITH (id BIGINT) AS j
JOIN submission_contracts AS c ON c.contract_id = j.id;"
    ))
}

fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn missing(what: &str) -> StoreError {
    StoreError::unexpected(format!("the {what} that was just inserted is missing"))
}

//! Contracts and their numbers in the database, remembered: rows never change, so neither does this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::database::{Batch, Database, Value};
use super::{rows, statements};
use crate::domain::contract::{Contract, ContractSnapshot, Policy};
use crate::store::StoreError;

#[derive(Clone, Default)]
pub struct Contracts(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    ids: HashMap<Arc<str>, ContractRow>,
    by_id: HashMap<i64, Arc<Contract>>,
}

#[derive(Clone, Copy)]
pub struct ContractRow {
    pub contract_id: i64,
    pub gateway_id: i64,
}

impl Contracts {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The row of a snapshot, made if it is new.
    pub async fn row(&self, database: &Database, snapshot: &ContractSnapshot) -> Result<ContractRow, StoreError> {
        if let Some(row) = self.lock().ids.get(&snapshot.json) {
            return Ok(*row);
        }
        let contract = &snapshot.contract;
        let limit = match contract.policy {
            Policy::Deadline { .. } => 0,
            Policy::MaxAttempts { max_attempts } => i64::from(max_attempts.get()),
            Policy::OneShot => 1,
        };
        let hash = |text: &str| Value::Bytes(Bytes::copy_from_slice(&Sha256::digest(text.as_bytes())));
        let values = vec![
            hash(contract.gateway_url.as_str()),
            Value::Text(contract.gateway_url.to_string()),
            hash(&snapshot.json),
            Value::Text(contract.target.to_string()),
            Value::Number(limit),
            Value::Text(snapshot.json.to_string()),
        ];
        let results = database.run(Batch { sql: statements::ENSURE_CONTRACT.into(), values }).await?;
        let row = results.iter().flatten().next().ok_or_else(|| missing("contract"))?;
        let row =
            ContractRow { contract_id: rows::need(row, "contract_id")?, gateway_id: rows::need(row, "gateway_id")? };
        if let Some(webhook) = &contract.webhook {
            let origin = webhook.url.origin();
            let values = vec![hash(origin), Value::Text(origin.to_owned()), Value::Number(row.contract_id)];
            database.run(Batch { sql: statements::ENSURE_RECEIVER.into(), values }).await?;
        }
        self.lock().ids.insert(Arc::clone(&snapshot.json), row);
        Ok(row)
    }

    /// The contracts of these rows; those that cannot be read are left out.
    pub async fn by_id(
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
            let values = vec![Value::Text(serde_json::Value::Array(unknown).to_string())];
            let results = database.run(Batch { sql: statements::CONTRACTS.into(), values }).await?;
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

fn missing(what: &str) -> StoreError {
    StoreError::Unexpected(format!("the {what} just written is not there"))
}

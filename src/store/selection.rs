//! Selects the store of an instance by `SM_STORE`, and migrates, opens and checks it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::copy::side::CopySide;
use super::sqlite::integrity::{Examined, quick_check};
use super::sqlite::{self, SqliteCopySide, SqliteStore};
use super::sqlserver::{InvalidConnectionString, PoolSettings, Settings, SqlServerCopySide, SqlServerStore};
use super::{Store, StoreError};
use crate::platform::clock::WallClock;
use crate::telemetry::metrics::Metrics;

/// The store if `SM_STORE` is not set.
pub const DEFAULT_STORE: &str = "sqlite:data/submission.db";
/// How long `check` looks for damage in a SQLite file. It reads a few hundred MiB a second, so this is enough for most files.
const MAX_CHECK_DURATION: Duration = Duration::from_secs(60);

/// Which store to use.
#[derive(Clone, Debug)]
pub enum StoreChoice {
    Sqlite(PathBuf),
    SqlServer(Box<Settings>),
}

/// What a login needs besides the connection string. The embedded store does not use it.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// Replaces the password in the connection string.
    pub password: Option<&'a str>,
    /// The file that holds an Entra ID access token, to log in with instead of a password.
    pub token_file: Option<&'a Path>,
}

/// The value of `SM_STORE` names no store. The text continues the name of the setting, and never repeats the value, which may
/// contain a password.
#[derive(Debug, thiserror::Error)]
pub enum InvalidStore {
    #[error("must be sqlite:<path of a file> or the connection string of a SQL Server")]
    UnknownForm,
    #[error("is used with either SM_STORE_PASSWORD or SM_STORE_TOKEN_FILE: leave one out")]
    TwoCredentials,
    #[error(transparent)]
    ConnectionString(#[from] InvalidConnectionString),
}

/// Why a store cannot be used, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    #[error(transparent)]
    Sqlite(#[from] sqlite::OpenError),
    #[error("cannot use {name} as the store")]
    SqlServer { name: String, source: StoreError },
}

impl StoreChoice {
    /// Parses the value of `SM_STORE`.
    pub fn parse(text: &str, credentials: Credentials<'_>, pool: PoolSettings) -> Result<Self, InvalidStore> {
        if let Some(path) = sqlite::path_of(text) {
            return Ok(Self::Sqlite(path));
        }
        if !text.contains('=') {
            return Err(InvalidStore::UnknownForm);
        }
        let settings = match credentials {
            Credentials { password: Some(_), token_file: Some(_) } => {
                return Err(InvalidStore::TwoCredentials);
            }
            Credentials { password: None, token_file: Some(file) } => Settings::parse_with_token_file(text, file, pool),
            Credentials { password, token_file: None } => Settings::parse(text, password, pool),
        };
        Ok(Self::SqlServer(Box::new(settings?)))
    }

    /// Brings the schema up to date, and returns how many migrations were run. It creates no directory except that of the
    /// default store, because otherwise a mistyped path would silently make a new store.
    pub async fn migrate(&self, metrics: Arc<Metrics>) -> Result<usize, StoreOpenError> {
        match self {
            Self::Sqlite(path) => {
                if sqlite::path_of(DEFAULT_STORE).as_ref() == Some(path) {
                    SqliteStore::make_directory(path)?;
                }
                Ok(SqliteStore::migrate(path)?)
            }
            Self::SqlServer(settings) => {
                let store = SqlServerStore::new(settings, true, metrics);
                store.migrate().await.map_err(|source| refused(settings, source))
            }
        }
    }

    /// Opens the store. A SQL Server that cannot be reached is not an error: the store keeps trying to connect.
    pub async fn open(&self, migrate: bool, metrics: Arc<Metrics>) -> Result<Arc<dyn Store>, StoreOpenError> {
        match self {
            Self::Sqlite(path) => {
                if migrate {
                    SqliteStore::make_directory(path)?;
                    SqliteStore::migrate(path)?;
                }
                Ok(Arc::new(SqliteStore::open(path, WallClock::system())?))
            }
            Self::SqlServer(settings) => {
                let store = SqlServerStore::new(settings, migrate, metrics);
                match store.prepare().await {
                    Ok(()) => {}
                    Err(StoreError::Unavailable(what)) => {
                        log::warn!(
                            "store_unavailable store={} store_error={what:?} next=\"the service keeps trying to connect\"",
                            settings.name()
                        );
                    }
                    Err(source) => return Err(refused(settings, source)),
                }
                Ok(Arc::new(store))
            }
        }
    }

    /// Checks whether the store can be used as it is, without changing anything. Returns a line for the user, and a line for
    /// each warning.
    pub async fn check(&self, metrics: Arc<Metrics>) -> Result<String, StoreOpenError> {
        match self {
            Self::Sqlite(path) if !path.exists() => {
                SqliteStore::could_be_made(path)?;
                Ok(format!("store {}: does not exist yet, will be created at start", path.display()))
            }
            Self::Sqlite(path) => {
                SqliteStore::open(path, WallClock::system())?;
                let examined = match quick_check(path, MAX_CHECK_DURATION)? {
                    Examined::All => "no damage found".to_owned(),
                    Examined::Part => {
                        format!("no damage found in the part that was read within {MAX_CHECK_DURATION:?}")
                    }
                };
                Ok(format!("store {}: opens, schema up to date, {examined}", path.display()))
            }
            Self::SqlServer(settings) => {
                let store = SqlServerStore::new(settings, false, metrics);
                let warnings = store.examine().await.map_err(|source| refused(settings, source))?;
                let warnings = warnings.iter().map(|warning| format!("\nwarning: {}", warning.text));
                Ok(format!("store {}: answers, schema up to date{}", settings.name(), warnings.collect::<String>()))
            }
        }
    }

    /// Opens the store, whose schema must be current, as the source or the target of a copy.
    pub(super) async fn copy_side(&self, metrics: Arc<Metrics>) -> Result<Arc<dyn CopySide>, StoreOpenError> {
        match self {
            Self::Sqlite(path) => Ok(Arc::new(SqliteCopySide::open(path, WallClock::system())?)),
            Self::SqlServer(settings) => {
                let store = SqlServerStore::new(settings, false, Arc::clone(&metrics));
                store.examine().await.map_err(|source| refused(settings, source))?;
                Ok(Arc::new(SqlServerCopySide::new(settings, metrics)))
            }
        }
    }

    /// Returns the size of the SQLite file, if there is one.
    pub fn file_bytes(&self) -> Option<u64> {
        match self {
            Self::Sqlite(path) => std::fs::metadata(path).ok().map(|file| file.len()),
            Self::SqlServer(_) => None,
        }
    }

    /// Returns the name of the store for messages.
    pub fn name(&self) -> String {
        match self {
            Self::Sqlite(path) => path.display().to_string(),
            Self::SqlServer(settings) => settings.name().to_owned(),
        }
    }
}

fn refused(settings: &Settings, source: StoreError) -> StoreOpenError {
    StoreOpenError::SqlServer { name: settings.name().to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_selected_by_the_form_of_its_text() {
        let pool = PoolSettings { size: 1, timeout: Duration::from_secs(1) };
        let name = |text| StoreChoice::parse(text, Credentials::default(), pool).map(|choice| choice.name());
        assert_eq!(name("sqlite:a b.db").unwrap(), "a b.db");
        assert_eq!(name("Server=db;Database=s;User Id=u;Password=p").unwrap(), "db:1433/s");
        for text in ["sqlite:", "data.db", "postgres://x", "Server=db"] {
            assert!(name(text).is_err(), "{text}");
        }
        let both = Credentials { password: Some("p"), token_file: Some(Path::new("token")) };
        let error = StoreChoice::parse("Server=db;Database=s", both, pool).unwrap_err().to_string();
        assert!(error.contains("either SM_STORE_PASSWORD or SM_STORE_TOKEN_FILE"), "{error}");
    }
}

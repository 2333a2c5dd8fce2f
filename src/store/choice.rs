//! Which store an instance uses, and opening it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::sqlite::integrity::{Examined, quick_check};
use super::sqlite::{self, SqliteStore};
use super::sqlserver::{PoolSettings, Settings, SqlServerStore};
use super::{Store, StoreError};
use crate::platform::clock::WallClock;
use crate::telemetry::metrics::Metrics;

/// The store if none is named.
pub const DEFAULT_STORE: &str = "sqlite:data/submission.db";
/// How long `check` looks for damage in an embedded store: at a few hundred MiB a second enough for most.
const MOST_CHECKING: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub enum StoreChoice {
    Sqlite(PathBuf),
    SqlServer(Box<Settings>),
}

/// What a login needs besides the connection string; not used by the embedded store.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// Replaces the password in the connection string.
    pub password: Option<&'a str>,
    /// Holds an access token of Entra ID, to log in with instead of a password.
    pub token_file: Option<&'a Path>,
}

/// Why a store cannot be used, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    #[error(transparent)]
    Sqlite(#[from] sqlite::OpenError),
    #[error("cannot use {name} as the store: {source}")]
    SqlServer { name: String, source: StoreError },
}

impl StoreChoice {
    /// Reads `SM_STORE`. An error says what is expected and repeats nothing of what was given.
    pub fn parse(text: &str, credentials: Credentials<'_>, pool: PoolSettings) -> Result<Self, String> {
        if let Some(path) = sqlite::path_of(text) {
            return Ok(Self::Sqlite(path));
        }
        if !text.contains('=') {
            return Err("must be sqlite:<path of a file> or the connection string of a SQL Server".to_owned());
        }
        let settings = match credentials {
            Credentials { password: Some(_), token_file: Some(_) } => {
                return Err("is used with either SM_STORE_PASSWORD or SM_STORE_TOKEN_FILE: leave one out".to_owned());
            }
            Credentials { password: None, token_file: Some(file) } => Settings::parse_with_token_file(text, file, pool),
            Credentials { password, token_file: None } => Settings::parse(text, password, pool),
        };
        settings.map(|settings| Self::SqlServer(Box::new(settings)))
    }

    /// Brings the schema up to date; how many migrations were run. Makes no directory but that of the default: a new
    /// store at a mistyped path would look as if all were well.
    pub async fn migrate(&self, metrics: Arc<Metrics>) -> Result<usize, ChoiceError> {
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

    /// Opens the store. A SQL Server that cannot be reached is no error: the store heals by itself.
    pub async fn open(&self, migrate: bool, metrics: Arc<Metrics>) -> Result<Arc<dyn Store>, ChoiceError> {
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
                            "store_unavailable store={} store_error={what:?} next=\"go on trying\"",
                            settings.name()
                        );
                    }
                    Err(source) => return Err(refused(settings, source)),
                }
                Ok(Arc::new(store))
            }
        }
    }

    /// Whether the store can be used as it is, in a line, with a line for each warning; makes and changes nothing.
    pub async fn check(&self, metrics: Arc<Metrics>) -> Result<String, ChoiceError> {
        match self {
            Self::Sqlite(path) if !path.exists() => {
                SqliteStore::could_be_made(path)?;
                Ok(format!("store {}: does not exist yet, will be made at start", path.display()))
            }
            Self::Sqlite(path) => {
                SqliteStore::open(path, WallClock::system())?;
                let examined = match quick_check(path, MOST_CHECKING)? {
                    Examined::All => "no damage found".to_owned(),
                    Examined::Part => {
                        format!("no damage found in {MOST_CHECKING:?}, which was not enough for all of it")
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

    /// The size of the file of an embedded store, if there is one.
    pub fn file_bytes(&self) -> Option<u64> {
        match self {
            Self::Sqlite(path) => std::fs::metadata(path).ok().map(|file| file.len()),
            Self::SqlServer(_) => None,
        }
    }

    /// For messages.
    pub fn name(&self) -> String {
        match self {
            Self::Sqlite(path) => path.display().to_string(),
            Self::SqlServer(settings) => settings.name().to_owned(),
        }
    }
}

fn refused(settings: &Settings, source: StoreError) -> ChoiceError {
    ChoiceError::SqlServer { name: settings.name().to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_by_their_text() {
        let pool = PoolSettings { size: 1, timeout: Duration::from_secs(1) };
        let name = |text| StoreChoice::parse(text, Credentials::default(), pool).map(|choice| choice.name());
        assert_eq!(name("sqlite:a b.db").as_deref(), Ok("a b.db"));
        assert_eq!(name("Server=db;Database=s;User Id=u;Password=p").as_deref(), Ok("db:1433/s"));
        for text in ["sqlite:", "data.db", "postgres://x", "Server=db"] {
            assert!(name(text).is_err(), "{text}");
        }
        let both = Credentials { password: Some("p"), token_file: Some(Path::new("token")) };
        let error = StoreChoice::parse("Server=db;Database=s", both, pool).unwrap_err();
        assert!(error.contains("either SM_STORE_PASSWORD or SM_STORE_TOKEN_FILE"), "{error}");
    }
}

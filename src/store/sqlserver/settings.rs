//! The settings of the connections to a SQL Server: address, login, and timeouts.
//!
//! No error of this module repeats the connection string, because it may contain a password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tiberius::error::Error;
use tiberius::{AuthMethod, Config, EncryptionLevel};

use super::connection_string::{ConnectionString, Key};

/// The default size of network packets. A batch has tens of kilobytes, which are then sent in a few packets. A TLS
/// record holds one packet of this size.
const PACKET_BYTES: u32 = 16_000;

/// A connection string that cannot be used, with everything that is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("is not a connection string that can be used ({}), such as {EXAMPLE}", errors.join("; "))]
pub struct InvalidConnectionString {
    errors: Vec<String>,
}

const EXAMPLE: &str = "Server=tcp:host,1433;Database=submissions;User Id=submission;Password='…'";

/// The settings of connections to one database. `Debug` shows only server and database.
#[derive(Clone)]
pub struct Settings {
    config: Config,
    name: String,
    /// The file with the access token, if the login uses one.
    token_file: Option<PathBuf>,
    pub pool: PoolSettings,
    /// How long a batch may take in all, including repetitions.
    pub budget: Duration,
    /// How long a statement may wait for a lock.
    pub lock_timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// The maximum number of connections.
    pub size: u32,
    /// How long a call may wait for the server, and for a connection.
    pub timeout: Duration,
}

/// How long a migration waits for a lock: longer than any transaction of the service takes. It is bounded, because
/// every other session that needs the table waits behind the migration meanwhile.
const MIGRATION_LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a migration may run. Building an index on a large table takes long.
const MIGRATION_BUDGET: Duration = Duration::from_secs(4 * 3600);

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The kind of login.
enum Login<'a> {
    /// A SQL login with this password, or with the one in the connection string.
    Password(Option<&'a str>),
    TokenFile(&'a Path),
}

impl Settings {
    /// Parses a connection string with a SQL login. `password` replaces the password in the string.
    pub fn parse(text: &str, password: Option<&str>, pool: PoolSettings) -> Result<Self, InvalidConnectionString> {
        Self::of(text, &Login::Password(password), pool)
    }

    /// Parses a connection string without a login. The file holds an access token of Entra ID and is read again for
    /// each new connection.
    pub fn parse_with_token_file(text: &str, file: &Path, pool: PoolSettings) -> Result<Self, InvalidConnectionString> {
        Self::of(text, &Login::TokenFile(file), pool)
    }

    fn of(text: &str, login: &Login<'_>, pool: PoolSettings) -> Result<Self, InvalidConnectionString> {
        let unusable = |errors| InvalidConnectionString { errors };
        let read = ConnectionString::parse(text).map_err(unusable)?;
        let (config, credentials) = (read.config(), credentials(&read, login));
        let (mut config, authentication) = match (config, credentials) {
            (Ok(config), Ok(authentication)) => (config, authentication),
            (config, credentials) => {
                let of_config = config.err().unwrap_or_default();
                return Err(unusable(of_config.into_iter().chain(credentials.err()).collect()));
            }
        };
        config.authentication(authentication);
        config.command_timeout(Some(pool.timeout));
        config.handshake_timeout(Some(pool.timeout));
        // A statement that cuts a text may cut a surrogate pair in half. The row must still be readable.
        config.lossy_utf16_decoding(true);
        if config.get_packet_size().is_none() {
            config.packet_size(PACKET_BYTES);
        }
        let name = format!("{}/{}", config.get_addr(), read.get(Key::Database).unwrap_or_default());
        let token_file = match login {
            Login::Password(_) => None,
            Login::TokenFile(file) => Some(file.to_path_buf()),
        };
        // The lock timeout is shorter than the command timeout. The server then reports a lock error, after which
        // nothing was changed; after a command timeout that would be unknown.
        Ok(Self { config, name, token_file, pool, budget: pool.timeout, lock_timeout: pool.timeout / 2 })
    }

    /// Returns these settings with the longer timeouts of migrations.
    pub fn for_migrations(&self) -> Self {
        let mut settings = self.clone();
        settings.budget = MIGRATION_BUDGET.max(self.pool.timeout);
        settings.lock_timeout = MIGRATION_LOCK_TIMEOUT.max(self.pool.timeout);
        settings.config.command_timeout(Some(settings.budget));
        settings
    }

    /// Returns the configuration of the driver for a new connection. Reads the access token from its file each time,
    /// because tokens expire within hours and the file is then replaced.
    pub async fn config(&self) -> Result<Config, Error> {
        let mut config = self.config.clone();
        if let Some(file) = self.token_file.clone() {
            let token = tokio::task::spawn_blocking(move || read_token(&file)).await;
            let token = token.unwrap_or_else(|died| Err(format!("reading the access token failed: {died}")));
            let token = token.map_err(|message| Error::Io { kind: std::io::ErrorKind::NotFound, message })?;
            config.authentication(AuthMethod::aad_token(token));
        }
        Ok(config)
    }

    /// Returns server and database, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Returns the login for the driver. An access token is set later, for each connection.
fn credentials(read: &ConnectionString, login: &Login<'_>) -> Result<AuthMethod, String> {
    let (user, password) = (read.get(Key::UserId), read.get(Key::Password));
    match (login, user) {
        (Login::TokenFile(_), None) if password.is_some() => {
            Err("Password is not used with SM_STORE_TOKEN_FILE: leave one of them out".to_owned())
        }
        (Login::TokenFile(_), None) => match read.encrypt() {
            Ok(EncryptionLevel::Off | EncryptionLevel::NotSupported) => {
                Err("Encrypt must be true or strict with SM_STORE_TOKEN_FILE: a token must not be sent unencrypted"
                    .to_owned())
            }
            _ => Ok(AuthMethod::aad_token("")),
        },
        (Login::TokenFile(_), Some(_)) => {
            Err("User Id is not used with SM_STORE_TOKEN_FILE: leave one of them out".to_owned())
        }
        (Login::Password(given), Some(user)) => {
            Ok(AuthMethod::sql_server(user, given.or(password).unwrap_or_default()))
        }
        (Login::Password(Some(_)), None) => Err("a password is given, but no User Id".to_owned()),
        (Login::Password(None), None) => {
            Err("it names no User Id: write the one of a SQL login, or name a file with an access token in \
             SM_STORE_TOKEN_FILE"
                .to_owned())
        }
    }
}

/// Reads an access token from a file and trims it. Errors name the file and do not repeat its content.
fn read_token(file: &Path) -> Result<String, String> {
    let place = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => format!("the file of SM_STORE_TOKEN_FILE, {place}, is not text"),
        _ => format!("cannot read the file of SM_STORE_TOKEN_FILE, {place}: {error}"),
    })?;
    let token = text.trim();
    match token {
        "" => Err(format!("the file of SM_STORE_TOKEN_FILE, {place}, is empty: write an access token to it")),
        token if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.to_owned()),
        _ => Err(format!(
            "the file of SM_STORE_TOKEN_FILE, {place}, must hold one access token and nothing else, not JSON"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolSettings = PoolSettings { size: 4, timeout: Duration::from_secs(5) };

    #[test]
    fn connection_strings() {
        let named =
            |text: &str, password| Settings::parse(text, password, POOL).map(|settings| settings.name().to_owned());
        for (text, password, expected) in [
            ("Server=tcp:db,1434;Database=s;User Id=u;Password=p", None, Ok("db:1434/s")),
            ("server=db;initial catalog=s;uid=u;pwd='p;=x';Encrypt=true", None, Ok("db:1433/s")),
            ("Server=db;Database=s;User Id=u", Some("p"), Ok("db:1433/s")),
            (
                // The form that the Azure portal shows, without the timeout.
                "Server=tcp:x.database.windows.net,1433;Initial Catalog=s;Persist Security Info=False;User ID=u;\
                 Password={p};MultipleActiveResultSets=False;Encrypt=True;TrustServerCertificate=False;",
                None,
                Ok("x.database.windows.net:1433/s"),
            ),
            ("Address=db;Database=s;User Id=u;Password=p", None, Err("Address is not supported: write Server")),
            ("Server=db;Database=s;User Name=u;Password=p", None, Err("User Name is not supported: write User Id")),
            ("Server=db;Database=s;Authentication=x", None, Err("SM_STORE_TOKEN_FILE")),
            ("Server=db\\inst;Database=s;User Id=u;Password={a;b};TrustServerCertificate=true", None, Ok("db:1434/s")),
            ("Database=s;User Id=u;Password=p", None, Err("names no Server")),
            ("Server=db;User Id=u;Password=p", None, Err("names no Database")),
            ("Server=db;Database=s", None, Err("names no User Id")),
            ("Server=db;Database=s", Some("p"), Err("but no User Id")),
        ] {
            match (named(text, password), expected) {
                (Ok(name), Ok(expected)) => assert_eq!(name, expected, "{text}"),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{text}: {error}"),
                (got, _) => panic!("{text}: {got:?}"),
            }
        }
    }

    #[test]
    fn a_lock_times_out_before_the_command_and_later_in_migrations() {
        let settings = Settings::parse("Server=db;Database=s;User Id=u;Password=p", None, POOL).unwrap();
        assert_eq!(settings.lock_timeout, POOL.timeout / 2);
        assert_eq!(settings.for_migrations().lock_timeout, MIGRATION_LOCK_TIMEOUT);
        let patient = PoolSettings { size: 4, timeout: Duration::from_secs(300) };
        let settings = Settings::parse("Server=db;Database=s;User Id=u;Password=p", None, patient).unwrap();
        let migrations = settings.for_migrations();
        assert!(migrations.lock_timeout > settings.lock_timeout && migrations.lock_timeout < migrations.budget);
    }

    #[test]
    fn a_token_replaces_the_login_and_is_never_sent_unencrypted() {
        let parse = |text: &str| Settings::parse_with_token_file(text, Path::new("token"), POOL);
        assert_eq!(parse("Server=db;Database=s").unwrap().name(), "db:1433/s");
        assert!(parse("Server=db;Database=s;Encrypt=strict").is_ok());
        for (text, expected) in [
            ("Server=db;Database=s;User Id=u", "User Id is not used with SM_STORE_TOKEN_FILE"),
            ("Server=db;Database=s;Password=tr0ub4dor", "Password is not used with SM_STORE_TOKEN_FILE"),
            ("Server=db;Database=s;Encrypt=false", "Encrypt must be true or strict"),
            ("Server=db;Database=s;Encrypt=DANGER_PLAINTEXT", "Encrypt must be true or strict"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("tr0ub4dor"), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_token_file_is_said_without_its_text() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let settings = Settings::parse_with_token_file("Server=db;Database=s", &file, POOL).unwrap();
        let error = async || settings.config().await.unwrap_err().to_string();
        assert!(error().await.contains("cannot read the file of SM_STORE_TOKEN_FILE"));
        for (text, expected) in [
            (" \n", "is empty"),
            ("{\"access_token\": \"tr0ub4dor\"}", "nothing else"),
            ("tr0ub4dor\0", "nothing else"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = error().await;
            assert!(error.contains(expected) && error.contains("token") && !error.contains("tr0ub4dor"), "{error}");
        }
        std::fs::write(&file, "\n  tr0ub4dor\n").unwrap();
        assert!(settings.config().await.is_ok());
    }

    #[test]
    fn no_message_repeats_the_password() {
        let secret = "tr0ub4dor";
        for text in [
            format!("Server=db;Database=s;User Id=u;Password='{secret}"),
            format!("Server=db;Database=s;User Id=u;Password={secret};Encrypt=perhaps"),
            format!("Server=db,port;Database=s;User Id=u;Password={secret}"),
            format!("Server=db;User Id=u;Password={secret}"),
            format!("Password={secret};;;=;Server=db;Database=x;Trust=1"),
            format!("Server=db;Database=s;Password={secret}"),
            secret.to_owned(),
        ] {
            for password in [None, Some(secret)] {
                match Settings::parse(&text, password, POOL) {
                    Ok(settings) => assert!(!format!("{settings:?} {}", settings.name()).contains(secret), "{text}"),
                    Err(error) => assert!(!format!("{error} {error:?}").contains(secret), "{error}"),
                }
            }
        }
    }
}

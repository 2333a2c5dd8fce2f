//! The connection string of a SQL Server, as ADO.NET writes it.
//!
//! Knows the password and never shows it: no error of this module repeats what it was given.

use std::fmt;
use std::time::Duration;

use tiberius::{AuthMethod, Config};

/// How to reach the database. `Debug` shows server and database only.
#[derive(Clone)]
pub struct Settings {
    config: Config,
    name: String,
    pub pool: PoolSettings,
    /// How long a batch may take in all, with being tried again.
    pub budget: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// Connections kept at most.
    pub size: u32,
    /// How long a call may wait for the server, and for a connection.
    pub timeout: Duration,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Settings {
    /// Parses a connection string; `password` replaces the one in it.
    pub fn parse(text: &str, password: Option<&str>, pool: PoolSettings) -> Result<Self, String> {
        const EXAMPLE: &str = "Server=tcp:host,1433;Database=submissions;User Id=submission;Password='…'";
        let fault =
            |what: &str| Err(format!("is not a connection string that can be used ({what}), such as {EXAMPLE}"));
        let pairs = pairs(text);
        let value =
            |names: &[&str]| pairs.iter().find(|(key, _)| names.contains(&key.as_str())).map(|(_, value)| value);
        if value(&["server", "data source", "address", "addr", "network address"]).is_none() {
            return fault("it names no Server");
        }
        let Some(database) = value(&["database", "initial catalog"]).filter(|name| !name.is_empty()) else {
            return fault("it names no Database");
        };
        // The driver's own message may repeat a piece of the string, and that piece may be a secret.
        let Ok(mut config) = Config::from_ado_string(text) else {
            return fault("a value may need quotes around it, or a key is unknown");
        };
        let user = value(&["user id", "uid", "user", "username", "user name"]).cloned();
        match (user, password) {
            (Some(user), Some(password)) => config.authentication(AuthMethod::sql_server(user, password)),
            (None, Some(_)) => return fault("a password is given, but no User Id"),
            (None, None) => return fault("it names no User Id; only SQL logins are supported"),
            (Some(_), None) => {}
        }
        config.application_name("submission-manager");
        config.command_timeout(Some(pool.timeout));
        config.handshake_timeout(Some(pool.timeout));
        let name = format!("{}/{database}", config.get_addr());
        Ok(Self { config, name, pool, budget: pool.timeout })
    }

    /// The same for migrations: an index on a large table takes its time.
    pub fn for_migrations(&self) -> Self {
        const HOURS: Duration = Duration::from_secs(4 * 3600);
        let mut settings = self.clone();
        settings.budget = HOURS.max(self.pool.timeout);
        settings.config.command_timeout(Some(settings.budget));
        settings
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Server and database, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Keys in lower case with their values, quotes taken off; enough to see what is there.
fn pairs(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let (value, next) = match after.chars().next() {
            Some(quote @ ('\'' | '"')) => after[1..].split_once(quote).unwrap_or((&after[1..], "")),
            Some('{') => after[1..].split_once('}').unwrap_or((&after[1..], "")),
            _ => match after.split_once(';') {
                Some((value, next)) => (value.trim_end(), next),
                None => (after.trim_end(), ""),
            },
        };
        pairs.push((key.trim().to_ascii_lowercase(), value.to_owned()));
        rest = next.trim_start().trim_start_matches(';');
    }
    pairs
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
            ("Server=db\\inst;Database=s;User Id=u;Password={a;b};TrustServerCertificate=true", None, Ok("db:1434/s")),
            ("Database=s;User Id=u;Password=p", None, Err("names no Server")),
            ("Server=db;User Id=u;Password=p", None, Err("names no Database")),
            ("Server=db;Database=s", None, Err("names no User Id")),
            ("Server=db;Database=s", Some("p"), Err("but no User Id")),
        ] {
            match (named(text, password), expected) {
                (Ok(name), Ok(expected)) => assert_eq!(name, expected, "{text}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{text}: {error}"),
                (got, _) => panic!("{text}: {got:?}"),
            }
        }
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
                    Err(error) => assert!(!error.contains(secret), "{error}"),
                }
            }
        }
    }
}

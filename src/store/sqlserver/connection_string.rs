//! Parses connection strings in the format of ADO.NET, and refuses every key that is not supported.
//!
//! The driver ignores keys that it does not know, so it could connect to another server than the string means. Here an
//! unsupported key is an error that says what to write instead. No error repeats a value, or a key that is not in the
//! tables below: if a quote is missing, it may be a part of the password.

use tiberius::{Config, EncryptionLevel};

/// A supported key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Server,
    Database,
    UserId,
    Password,
    Encrypt,
    TrustServerCertificate,
    TrustServerCertificateCa,
    HostNameInCertificate,
    MultiSubnetFailover,
    ApplicationName,
    WorkstationId,
    PacketSize,
    /// These features do not exist here. Their keys are accepted if they switch the feature off.
    MultipleActiveResultSets,
    PersistSecurityInfo,
    IntegratedSecurity,
    /// Accepted if its value is `ReadWrite`.
    ApplicationIntent,
}

/// The supported keys with all their names in ADO.NET. Messages use the first name.
const HONOURED: [(Key, &[&str]); 16] = [
    (Key::Server, &["Server", "Data Source"]),
    (Key::Database, &["Database", "Initial Catalog", "DatabaseName"]),
    (Key::UserId, &["User Id", "UID", "User", "UserName"]),
    (Key::Password, &["Password", "PWD"]),
    (Key::Encrypt, &["Encrypt"]),
    (Key::TrustServerCertificate, &["TrustServerCertificate", "Trust Server Certificate"]),
    (Key::TrustServerCertificateCa, &["TrustServerCertificateCA"]),
    (Key::HostNameInCertificate, &["HostNameInCertificate", "Host Name In Certificate", "HostName In Certificate"]),
    (Key::MultiSubnetFailover, &["MultiSubnetFailover", "Multi Subnet Failover"]),
    (Key::ApplicationName, &["Application Name", "ApplicationName", "App"]),
    (Key::WorkstationId, &["Workstation ID", "WorkstationID", "WSID"]),
    (Key::PacketSize, &["Packet Size", "PacketSize"]),
    (Key::MultipleActiveResultSets, &["MultipleActiveResultSets", "Multiple Active Result Sets"]),
    (Key::PersistSecurityInfo, &["Persist Security Info", "PersistSecurityInfo"]),
    (Key::IntegratedSecurity, &["Integrated Security", "IntegratedSecurity", "Trusted_Connection"]),
    (Key::ApplicationIntent, &["ApplicationIntent", "Application Intent"]),
];

const LEAVE_OUT: &str = "leave it out";
const WRITE_SERVER: &str = "write Server=tcp:host,port";
const TOKEN_FILE: &str = "for an Entra ID login name a file with an access token in SM_STORE_TOKEN_FILE, for a SQL \
    login write User Id, and leave this key out";
const TIMEOUT: &str = "leave it out and set SM_STORE_TIMEOUT";
const POOL: &str = "leave it out and set SM_STORE_CONNECTIONS";
const AVAILABILITY_GROUP: &str =
    "leave it out; write the listener of the availability group as Server, with MultiSubnetFailover=true";

/// Keys of ADO.NET, ODBC and JDBC that are not supported, with what to write instead.
const NOT_HONOURED: [(&str, &str); 51] = [
    ("Address", WRITE_SERVER),
    ("Addr", WRITE_SERVER),
    ("Network Address", WRITE_SERVER),
    ("Host", WRITE_SERVER),
    ("Port", WRITE_SERVER),
    ("User Name", "write User Id"),
    ("Authentication", TOKEN_FILE),
    ("Access Token", TOKEN_FILE),
    ("AccessToken", TOKEN_FILE),
    ("Connect Timeout", TIMEOUT),
    ("Connection Timeout", TIMEOUT),
    ("ConnectTimeout", TIMEOUT),
    ("ConnectionTimeout", TIMEOUT),
    ("LoginTimeout", TIMEOUT),
    ("Timeout", TIMEOUT),
    ("Command Timeout", TIMEOUT),
    ("CommandTimeout", TIMEOUT),
    ("Max Pool Size", POOL),
    ("Min Pool Size", POOL),
    ("Pooling", POOL),
    ("Connection Lifetime", LEAVE_OUT),
    ("Load Balance Timeout", LEAVE_OUT),
    ("Pool Blocking Period", LEAVE_OUT),
    ("PoolBlockingPeriod", LEAVE_OUT),
    ("Failover Partner", AVAILABILITY_GROUP),
    ("FailoverPartner", AVAILABILITY_GROUP),
    ("Failover_Partner", AVAILABILITY_GROUP),
    ("TransparentNetworkIPResolution", LEAVE_OUT),
    ("Transparent Network IP Resolution", LEAVE_OUT),
    ("IP Address Preference", LEAVE_OUT),
    ("IPAddressPreference", LEAVE_OUT),
    ("Connect Retry Count", LEAVE_OUT),
    ("ConnectRetryCount", LEAVE_OUT),
    ("Connect Retry Interval", LEAVE_OUT),
    ("ConnectRetryInterval", LEAVE_OUT),
    ("Server Certificate", "write TrustServerCertificateCA=<PEM file of the certificate authority>"),
    ("ServerCertificate", "write TrustServerCertificateCA=<PEM file of the certificate authority>"),
    ("Column Encryption Setting", LEAVE_OUT),
    ("Attestation Protocol", LEAVE_OUT),
    ("Enclave Attestation Url", LEAVE_OUT),
    ("AttachDBFilename", "leave it out; attach the file on the server and write Database"),
    ("User Instance", LEAVE_OUT),
    ("Context Connection", LEAVE_OUT),
    ("Enlist", LEAVE_OUT),
    ("Replication", LEAVE_OUT),
    ("Transaction Binding", LEAVE_OUT),
    ("Type System Version", LEAVE_OUT),
    ("Current Language", LEAVE_OUT),
    ("Language", LEAVE_OUT),
    ("Network Library", "leave it out; the server is always reached over TCP"),
    ("Driver", "leave it out; this is how ADO.NET writes connection strings, not ODBC"),
];

/// A connection string that has only supported keys. It does not implement `Debug`, because it may contain a password.
pub(super) struct ConnectionString(Vec<(Key, String)>);

impl ConnectionString {
    /// Parses a connection string, or returns all errors in it.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<String>> {
        let pairs = pairs(text).map_err(|error| vec![error.to_owned()])?;
        let mut read: Vec<(Key, String)> = Vec::new();
        let mut errors = Vec::new();
        for (number, (name, value)) in pairs.into_iter().enumerate() {
            match find(&name) {
                Ok((key, name)) if read.iter().any(|(other, _)| *other == key) => {
                    errors.push(format!("{name} is given more than once"));
                }
                Ok((key, _)) => read.push((key, value)),
                Err(Some((name, instead))) => errors.push(format!("{name} is not supported: {instead}")),
                Err(None) => errors.push(format!(
                    "key number {} is not known: leave it out, or put quotes around the value before it if that has \
                     a semicolon in it",
                    number + 1
                )),
            }
        }
        if errors.is_empty() { Ok(Self(read)) } else { Err(errors) }
    }

    /// Returns the value of a key; `None` if the key is missing or its value is empty.
    pub(super) fn get(&self, key: Key) -> Option<&str> {
        let value = self.0.iter().find(|(other, _)| *other == key).map(|(_, value)| value.as_str());
        value.filter(|value| !value.is_empty())
    }

    /// Returns the configuration of the driver without the login, or all errors.
    pub(super) fn config(&self) -> Result<Config, Vec<String>> {
        let mut config = Config::new();
        let mut errors = Vec::new();
        let mut apply = |result: Result<(), String>| errors.extend(result.err());
        apply(self.server(&mut config));
        match self.get(Key::Database) {
            Some(name) => config.database(name),
            None => apply(Err("it names no Database".to_owned())),
        }
        apply(self.encryption(&mut config));
        if let Some(name) = self.get(Key::HostNameInCertificate) {
            config.hostname_in_certificate(name);
        }
        apply(self.switch(Key::MultiSubnetFailover).map(|on| config.multi_subnet_failover(on)));
        config.application_name(self.get(Key::ApplicationName).unwrap_or("submission-manager"));
        if let Some(name) = self.get(Key::WorkstationId) {
            config.client_name(name);
        }
        apply(self.packet_size(&mut config));
        for (key, instead) in [
            (Key::MultipleActiveResultSets, LEAVE_OUT),
            (Key::PersistSecurityInfo, LEAVE_OUT),
            (Key::IntegratedSecurity, TOKEN_FILE),
        ] {
            // `SSPI` means true, so `switch` returns an error for it.
            if self.switch(key) != Ok(false) {
                apply(Err(format!("{} can only be false: {instead}", name(key))));
            }
        }
        if self.get(Key::ApplicationIntent).is_some_and(|intent| !intent.eq_ignore_ascii_case("ReadWrite")) {
            apply(Err("ApplicationIntent can only be ReadWrite, because the service writes: leave it out".to_owned()));
        }
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    fn server(&self, config: &mut Config) -> Result<(), String> {
        let Some(server) = self.get(Key::Server) else { return Err("it names no Server".to_owned()) };
        let address = match server.split_once(':') {
            Some((protocol, address)) if protocol.eq_ignore_ascii_case("tcp") => address,
            Some((protocol, _)) if ["np", "lpc", "admin"].iter().any(|other| protocol.eq_ignore_ascii_case(other)) => {
                return Err(format!("Server is only reached over TCP: {WRITE_SERVER}"));
            }
            // The port is separated by a colon, as in a URL. An IPv6 address has further colons.
            Some((_, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(format!("the port of Server must follow a comma: {WRITE_SERVER}"));
            }
            _ => server,
        };
        let (host, port) = match address.split_once(',') {
            Some((host, port)) => (host.trim(), Some(port.trim())),
            None => (address.trim(), None),
        };
        let (host, instance) = match host.split_once('\\') {
            Some((host, instance)) => (host, Some(instance)),
            None => (host, None),
        };
        if host.is_empty() || instance == Some("") {
            return Err(format!("Server is not a host or host\\instance: {WRITE_SERVER}"));
        }
        config.host(if ["(local)", "."].contains(&host) { "localhost" } else { host });
        if let Some(instance) = instance {
            config.instance_name(instance);
        }
        if let Some(port) = port {
            config.port(port.parse().map_err(|_| format!("the port of Server is not a number: {WRITE_SERVER}"))?);
        }
        Ok(())
    }

    fn encryption(&self, config: &mut Config) -> Result<(), String> {
        config.encryption(self.encrypt()?);
        let trust = self.switch(Key::TrustServerCertificate)?;
        match (trust, self.get(Key::TrustServerCertificateCa)) {
            (true, Some(_)) => {
                return Err(
                    "TrustServerCertificate=true and TrustServerCertificateCA exclude each other: leave one out"
                        .to_owned(),
                );
            }
            (true, None) => config.trust_cert(),
            (false, Some(file)) => config.trust_cert_ca(file),
            (false, None) => {}
        }
        Ok(())
    }

    /// Returns how the connection is encrypted; by default everything is.
    pub(super) fn encrypt(&self) -> Result<EncryptionLevel, String> {
        let Some(value) = self.get(Key::Encrypt) else { return Ok(EncryptionLevel::Required) };
        match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "mandatory" => Ok(EncryptionLevel::Required),
            "false" | "no" | "optional" => Ok(EncryptionLevel::Off),
            "strict" => Ok(EncryptionLevel::Strict),
            "danger_plaintext" => Ok(EncryptionLevel::NotSupported),
            _ => Err("Encrypt must be true, false or strict".to_owned()),
        }
    }

    fn packet_size(&self, config: &mut Config) -> Result<(), String> {
        /// The sizes that SQL Server accepts.
        const BYTES: std::ops::RangeInclusive<u32> = 512..=32_767;
        let Some(value) = self.get(Key::PacketSize) else { return Ok(()) };
        match value.parse().ok().filter(|size| BYTES.contains(size)) {
            Some(size) => {
                config.packet_size(size);
                Ok(())
            }
            None => Err(format!("Packet Size must be {} to {} bytes", BYTES.start(), BYTES.end())),
        }
    }

    /// Returns the value of a key that is true or false; false if the key is missing.
    fn switch(&self, key: Key) -> Result<bool, String> {
        match self.get(key).unwrap_or("false").to_ascii_lowercase().as_str() {
            "true" | "yes" => Ok(true),
            "false" | "no" => Ok(false),
            _ => Err(format!("{} must be true or false", name(key))),
        }
    }
}

/// Returns the name of a key for messages.
fn name(key: Key) -> &'static str {
    HONOURED.iter().find(|(other, _)| *other == key).and_then(|(_, names)| names.first()).copied().unwrap_or_default()
}

/// Finds a supported key by any of its names. For an unsupported key that is known, the error has its name and what to
/// write instead.
fn find(text: &str) -> Result<(Key, &'static str), Option<(&'static str, &'static str)>> {
    let same = |name: &&str| name.eq_ignore_ascii_case(text);
    let honoured = HONOURED.iter().find(|(_, names)| names.iter().any(same));
    match honoured {
        Some((key, _)) => Ok((*key, name(*key))),
        None => Err(NOT_HONOURED.iter().find(|(name, _)| same(name)).copied()),
    }
}

/// Splits a string into keys and values, in order. A value in quotes may contain semicolons, and its own quote doubled.
/// A value in braces may contain anything except a closing brace. A doubled `=` in a key stands for one.
fn pairs(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let mut pairs = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ';' || c.is_whitespace());
        if rest.is_empty() {
            return Ok(pairs);
        }
        let (key, after) = key(rest)?;
        let (value, after) = value(after.trim_start())?;
        pairs.push((key, value));
        rest = match after.trim_start() {
            "" => "",
            after => after.strip_prefix(';').ok_or("there is text between a value in quotes and the next semicolon")?,
        };
    }
}

fn key(text: &str) -> Result<(String, &str), &'static str> {
    let mut key = String::new();
    let mut rest = text;
    loop {
        let end = rest.find(['=', ';']).filter(|end| rest[*end..].starts_with('='));
        let end = end.ok_or("a key has no value: write key=value pairs with semicolons between them")?;
        key.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('=') {
            Some(after) => {
                key.push('=');
                rest = after;
            }
            None => return Ok((key.trim().to_owned(), rest)),
        }
    }
}

fn value(text: &str) -> Result<(String, &str), &'static str> {
    const UNCLOSED: &str = "a value begins with a quote or a brace that is not closed";
    if let Some(inside) = text.strip_prefix('{') {
        return inside.split_once('}').map(|(value, rest)| (value.to_owned(), rest)).ok_or(UNCLOSED);
    }
    let Some(quote) = text.chars().next().filter(|first| ['\'', '"'].contains(first)) else {
        let end = text.find(';').unwrap_or(text.len());
        return Ok((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut rest = &text[1..];
    loop {
        let (inside, after) = rest.split_once(quote).ok_or(UNCLOSED)?;
        value.push_str(inside);
        match after.strip_prefix(quote) {
            Some(after) => {
                value.push(quote);
                rest = after;
            }
            None => return Ok((value, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> String {
        match ConnectionString::parse(text).and_then(|read| read.config().map(drop)) {
            Ok(()) => String::new(),
            Err(errors) => errors.join("; "),
        }
    }

    #[test]
    fn every_name_of_a_key_is_honoured() {
        let value = |key, name: &str| match key {
            Key::Server => format!("{name}=tcp:db,1"),
            Key::Encrypt | Key::TrustServerCertificate | Key::MultiSubnetFailover => format!("{name}=true"),
            Key::MultipleActiveResultSets | Key::PersistSecurityInfo | Key::IntegratedSecurity => {
                format!("{name}=False")
            }
            Key::ApplicationIntent => format!("{name}=readwrite"),
            Key::PacketSize => format!("{name}=16384"),
            _ => format!("{name}=x"),
        };
        for (key, names) in HONOURED {
            for name in names {
                for name in [name.to_uppercase(), name.to_lowercase()] {
                    let rest = match key {
                        Key::Server => "Database=d",
                        Key::Database => "Server=db",
                        _ => "Server=db;Database=d",
                    };
                    let text = format!("{rest};{}", value(key, &name));
                    assert_eq!(errors(&text), "", "{text}");
                    assert!(ConnectionString::parse(&text).ok().unwrap().get(key).is_some(), "{text}");
                    let twice = format!("{text};{}", value(key, names[0]));
                    assert!(errors(&twice).contains("more than once"), "{twice}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_honoured_is_refused_by_name_with_what_to_write_instead() {
        for (name, instead) in NOT_HONOURED {
            let said = errors(&format!("Server=db;Database=d;{}=x", name.to_uppercase()));
            assert!(said.contains(name) && said.contains(instead), "{name}: {said}");
        }
        let all =
            errors("Address=tcp:db,1433;Database=d;User Name=u;Authentication=Active Directory Default;Unheard=1");
        for part in ["Address", "Server=tcp:host,port", "User Name", "User Id", "SM_STORE_TOKEN_FILE", "key number 5"] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert!(!all.contains("Unheard"), "{all}");
    }

    #[test]
    fn values_that_cannot_be_honoured_are_refused() {
        for (text, expected) in [
            ("Database=d", "names no Server"),
            ("Server=;Database=d", "names no Server"),
            ("Server=db", "names no Database"),
            ("Server=db;Database=", "names no Database"),
            ("Server=np:\\\\db\\pipe;Database=d", "only reached over TCP"),
            ("Server=db:1433;Database=d", "follow a comma"),
            ("Server=db,port;Database=d", "not a number"),
            ("Server=db,1433,5;Database=d", "not a number"),
            ("Server=,1433;Database=d", "not a host"),
            ("Server=db\\;Database=d", "not a host"),
            ("Server=db;Database=d;Encrypt=perhaps", "Encrypt must be"),
            ("Server=db;Database=d;TrustServerCertificate=1", "TrustServerCertificate must be true or false"),
            ("Server=db;Database=d;TrustServerCertificate=true;TrustServerCertificateCA=ca.pem", "exclude each other"),
            ("Server=db;Database=d;MultiSubnetFailover=maybe", "MultiSubnetFailover must be"),
            ("Server=db;Database=d;Integrated Security=SSPI", "Integrated Security can only be false"),
            ("Server=db;Database=d;MultipleActiveResultSets=true", "can only be false"),
            ("Server=db;Database=d;ApplicationIntent=ReadOnly", "can only be ReadWrite"),
            ("Server=db;Database=d;Packet Size=100000", "512 to 32767"),
            ("Server=db;Database", "has no value"),
            ("Server=db;Password='a;Database=d", "not closed"),
            ("Server=db;Password={a;Database=d", "not closed"),
            ("Server=db;Password='a'b;Database=d", "text between"),
        ] {
            assert!(errors(text).contains(expected), "{text}: {}", errors(text));
        }
    }

    #[test]
    fn values_are_read_as_ado_net_writes_them() {
        for (written, value) in [
            ("p", "p"),
            (" p = q ", "p = q"),
            ("'p;=x'", "p;=x"),
            ("\"it''s\"", "it''s"),
            ("'it''s'", "it's"),
            ("\"a\"\"b\" ", "a\"b"),
            ("{a;'b}", "a;'b"),
            ("säkert", "säkert"),
        ] {
            let text = format!(" ;Server = db ;; Password= {written};Database=d;");
            let read = ConnectionString::parse(&text).ok().unwrap();
            assert_eq!((read.get(Key::Password), read.get(Key::Server)), (Some(value), Some("db")), "{text}");
        }
        let address = |server: &str| {
            let read = ConnectionString::parse(&format!("Server={server};Database=d")).ok().unwrap();
            read.config().unwrap().get_addr()
        };
        for (server, expected) in [
            ("tcp:db,1434", "db:1434"),
            ("TCP:db.example", "db.example:1433"),
            ("db , 1500", "db:1500"),
            ("(local)", "localhost:1433"),
            (".", "localhost:1433"),
            ("db\\instance", "db:1434"),
            ("tcp:db\\instance,1500", "db:1500"),
        ] {
            assert_eq!(address(server), expected, "{server}");
        }
    }
}

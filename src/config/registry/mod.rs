//! Reads the registry files (targets, management nodes, API clients, inbox clients, console users) into checked types of the domain.
//!
//! A file with an error is not used at all. Every error of every file is reported at once, with its location and what to
//! write instead. Lines that begin with `#` are comments. Contracts that are already stored with an intent never change when
//! a file changes.

mod api_clients;
mod console_users;
mod contract;
mod inbox_clients;
mod nodes;
mod oidc;
mod targets;
mod webhook;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use crate::config::identity::Identities;
use crate::config::json_fields::{LocatedError, parse_object};
use crate::config::variables::Variables;
use crate::domain::contract::ContractSnapshot;
use crate::domain::inbox::InboxClient;
use crate::domain::intent::TargetName;
use crate::domain::limits::TargetLimits;
use crate::domain::node::ManagementNode;

use serde_json::{Map, Value};

pub use self::console_users::{ConsoleUser, InvalidHtpasswd};
pub use self::oidc::{OidcConfig, provider_url};
use self::targets::Targets;

/// The paths of the registry files. Each optional file enables a part of the service: jobs, tokens, the
/// inbox, logins to the console.
#[derive(Clone, Debug)]
pub struct RegistryFiles {
    pub targets: PathBuf,
    pub nodes: Option<PathBuf>,
    pub api_clients: Option<PathBuf>,
    pub inbox_clients: Option<PathBuf>,
    pub console_users: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("cannot read {}: {source}; name the file with {setting}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error, setting: &'static str },
    #[error("{}: {}{}", path.display(), error_count(errors.len()), lines(errors))]
    Invalid { path: PathBuf, errors: Vec<LocatedError> },
}

/// All errors of all registry files.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct RegistryError(Vec<FileError>);

fn error_count(count: usize) -> String {
    if count == 1 { "1 error".to_owned() } else { format!("{count} errors") }
}

fn lines(errors: &[LocatedError]) -> String {
    errors.iter().map(|error| format!("\n  {error}")).collect()
}

/// The content of the registry files: targets with their contracts, management nodes, API clients, inbox clients and
/// console users.
#[derive(Debug)]
pub struct Registry {
    targets: Targets,
    /// By id; `None` if no file is configured.
    nodes: Option<HashMap<String, Arc<ManagementNode>>>,
    /// The API clients; `None` if no file is configured.
    pub identities: Option<Identities>,
    /// The clients of the inbox; `None` if no file is configured.
    pub inbox: Option<InboxClients>,
    /// The users of the console with passwords; `None` if no file lists any.
    pub console_users: Option<Arc<[ConsoleUser]>>,
    /// The provider that people sign in to the console with; `None` if no file names one.
    pub oidc: Option<Arc<OidcConfig>>,
}

/// The clients of the inbox by slug.
pub type InboxClients = HashMap<String, Arc<InboxClient>>;

impl Registry {
    /// Reads all configured files. Fails with every error of every file.
    pub fn load(files: &RegistryFiles, variables: &Variables) -> Result<Self, RegistryError> {
        let mut errors = Vec::new();
        let mut registry = Self::of(HashMap::new());
        let targets = read(&files.targets, "--registry or SM_REGISTRY", |text| targets::parse(text, variables));
        targets.map(|targets| registry.targets = targets).unwrap_or_else(|error| errors.push(error));
        if let Some(path) = &files.nodes {
            let nodes = read(path, "--nodes or SM_NODES", nodes::parse);
            nodes.map(|nodes| registry.nodes = Some(nodes)).unwrap_or_else(|error| errors.push(error));
        }
        if let Some(path) = &files.api_clients {
            let directory = path.parent().unwrap_or(Path::new("."));
            let clients = read(path, "--api-clients or SM_API_CLIENTS", |text| api_clients::parse(text, directory));
            clients.map(|clients| registry.identities = Some(clients)).unwrap_or_else(|error| errors.push(error));
        }
        if let Some(path) = &files.inbox_clients {
            let setting = "--inbox-clients or SM_INBOX_CLIENTS";
            let clients = read(path, setting, |text| inbox_clients::parse(text, variables));
            clients.map(|clients| registry.inbox = Some(clients)).unwrap_or_else(|error| errors.push(error));
        }
        if let Some(path) = &files.console_users {
            let setting = "--console-users or SM_CONSOLE_USERS";
            match read(path, setting, |text| console_users::parse(text, variables)) {
                Ok(read) => (registry.console_users, registry.oidc) = (read.users, read.oidc),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(registry) } else { Err(RegistryError(errors)) }
    }

    fn of(targets: Targets) -> Self {
        Self { targets, nodes: None, identities: None, inbox: None, console_users: None, oidc: None }
    }

    /// A registry that has only targets, from the text of their file. Environment variables that the file names and that
    /// are not set are among its errors.
    pub fn parse(text: &str, variables: &Variables) -> Result<Self, Vec<LocatedError>> {
        targets::parse(text, variables).map(Self::of)
    }

    /// This registry with management nodes and API clients, from the texts of their files.
    pub fn with_jobs(self, nodes: &str, api_clients: &str) -> Result<Self, Vec<LocatedError>> {
        let identities = api_clients::parse(api_clients, Path::new("."))?;
        Ok(Self { nodes: Some(nodes::parse(nodes)?), identities: Some(identities), ..self })
    }

    /// This registry with clients of the inbox, from the text of their file.
    pub fn with_inbox(self, clients: &str, variables: &Variables) -> Result<Self, Vec<LocatedError>> {
        Ok(Self { inbox: Some(inbox_clients::parse(clients, variables)?), ..self })
    }

    /// A registry that has only what the text of a file of console users says.
    #[cfg(test)]
    pub fn of_console_users(text: &str, variables: &Variables) -> Result<Self, Vec<LocatedError>> {
        let read = console_users::parse(text, variables)?;
        Ok(Self { console_users: read.users, oidc: read.oidc, ..Self::of(HashMap::new()) })
    }

    /// The contract of a target.
    pub fn contract(&self, target: &TargetName) -> Option<Arc<ContractSnapshot>> {
        self.targets.get(target).map(|target| Arc::clone(&target.snapshot))
    }

    /// The limits of a target. The target may also be a management node's, whose only limit is its attempt timeout.
    pub fn limits(&self, target: &TargetName) -> TargetLimits {
        if let Some(target) = self.targets.get(target) {
            return target.limits;
        }
        let node = target.as_str().strip_prefix(nodes::TARGET_PREFIX).and_then(|id| self.node(id));
        TargetLimits { attempt_timeout: node.and_then(|node| node.attempt_timeout), ..TargetLimits::default() }
    }

    /// The limits of every target that has any.
    pub fn all_limits(&self) -> HashMap<TargetName, TargetLimits> {
        let limited = self.targets.iter().filter(|(_, target)| target.limits != TargetLimits::default());
        limited.map(|(name, target)| (name.clone(), target.limits)).collect()
    }

    /// Whether the jobs API is enabled. It needs management nodes and API clients.
    pub fn takes_jobs(&self) -> bool {
        self.nodes.is_some() && self.identities.is_some()
    }

    /// The management node with this id.
    pub fn node(&self, id: &str) -> Option<Arc<ManagementNode>> {
        self.nodes.as_ref()?.get(id).cloned()
    }

    /// The contracts of all targets and management nodes, in no particular order.
    pub fn contracts(&self) -> impl Iterator<Item = Arc<ContractSnapshot>> {
        let of_nodes = self.nodes.iter().flat_map(HashMap::values).map(|node| Arc::clone(&node.contract));
        self.targets.values().map(|target| Arc::clone(&target.snapshot)).chain(of_nodes)
    }

    /// The names of all targets, in no particular order, without those of management nodes.
    pub fn targets(&self) -> impl Iterator<Item = &TargetName> {
        self.targets.keys()
    }

    /// The number of entries of each kind, as `key=value` pairs for a log line.
    pub fn summary(&self) -> String {
        let counted = |count: Option<usize>, what: &str| count.map(|count| format!(" {what}={count}"));
        let nodes = counted(self.nodes.as_ref().map(HashMap::len), "nodes");
        let clients = counted(self.identities.as_ref().map(Identities::len), "api_clients");
        let inbox = counted(self.inbox.as_ref().map(HashMap::len), "inbox_clients");
        let users = counted(self.console_users.as_ref().map(|users| users.len()), "console_users");
        let oidc = self.oidc.as_ref().map(|oidc| format!(" oidc_issuer={}", oidc.issuer));
        let others: String = [nodes, clients, inbox, users, oidc].into_iter().flatten().collect();
        format!("targets={}{others}", self.targets.len())
    }
}

/// The errors in the text of an API client file, one line each.
pub fn errors_in_api_clients(text: &str) -> Vec<String> {
    let errors = api_clients::parse(text, Path::new(".")).err().unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

/// The JSON object in a registry file, without its comments.
fn document(text: &str) -> Result<Map<String, Value>, Vec<LocatedError>> {
    parse_object(without_comments(text).as_bytes())
}

/// Replaces each comment line with an empty line, so that line numbers in errors are those of the file. This cannot damage a
/// string, because a JSON string contains no line break.
fn without_comments(text: &str) -> Cow<'_, str> {
    let is_comment = |line: &str| line.trim_start_matches([' ', '\t']).starts_with('#');
    if !text.split('\n').any(is_comment) {
        return Cow::Borrowed(text);
    }
    let lines = text.split('\n').map(|line| if is_comment(line) { "" } else { line });
    Cow::Owned(lines.collect::<Vec<_>>().join("\n"))
}

fn read<T>(
    path: &Path,
    setting: &'static str,
    parse: impl FnOnce(&str) -> Result<T, Vec<LocatedError>>,
) -> Result<T, FileError> {
    let text = std::fs::read_to_string(path).map_err(|source| FileError::Unreadable {
        path: path.to_owned(),
        source,
        setting,
    })?;
    parse(&text).map_err(|errors| FileError::Invalid { path: path.to_owned(), errors })
}

/// The registry that is in use. A reload replaces it as a whole.
#[derive(Clone)]
pub struct CurrentRegistry(Arc<RwLock<Arc<Registry>>>);

impl CurrentRegistry {
    pub fn new(registry: Registry) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(registry))))
    }

    /// A registry that others use too.
    #[cfg(test)]
    pub fn of(registry: Arc<Registry>) -> Self {
        Self(Arc::new(RwLock::new(registry)))
    }

    /// Uses another registry from now on, as a reload does.
    #[cfg(test)]
    pub fn replace(&self, registry: Arc<Registry>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = registry;
    }

    /// The registry that is in use now. It does not change while the caller holds it.
    pub fn get(&self) -> Arc<Registry> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again and uses them from now on. If any file has an error, the current registry stays in use.
    /// Returns the summary of the new registry.
    pub fn reload(&self, files: &RegistryFiles, variables: &Variables) -> Result<String, RegistryError> {
        let registry = Registry::load(files, variables)?;
        let summary = registry.summary();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registry);
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: &str = r#"{"targets": [{"submissionTarget": "a # b", "gatewayType": "sms", "gatewayUrl": "http://x",
        "policy": "one_shot", "terminalOutcomes": ["invalid_request"]}]}"#;
    const NODES: &str = include_str!("../../../registry/management_nodes.json");
    const CALLERS: &str = include_str!("../../../registry/api_clients.json");
    const INBOX: &str = include_str!("../../../registry/inbox_clients.json");

    fn all(change: impl Fn(&str) -> String) -> Result<Registry, Vec<LocatedError>> {
        let none = Variables::from_fn(|_| None);
        Registry::parse(&change(TARGETS), &none)?
            .with_jobs(&change(NODES), &change(CALLERS))?
            .with_inbox(&change(INBOX), &none)
    }

    /// A comment before, between and after all lines of a text.
    fn commented(text: &str) -> String {
        text.lines().fold("# first".to_owned(), |text, line| format!("{text}\r\n{line}\n \t#\" {{ said\n#")) + "\n#last"
    }

    #[test]
    fn every_file_may_have_comment_lines() {
        let (plain, with_comments) = (all(str::to_owned).unwrap(), all(commented).unwrap());
        assert_eq!(plain.summary(), with_comments.summary());
        assert!(with_comments.contract(&TargetName::parse("a # b").unwrap()).is_some(), "a # in a string stays");
    }

    #[test]
    fn errors_name_the_lines_of_the_file_with_its_comments() {
        let error = |text: &str| document(text).unwrap_err()[0].to_string();
        assert_eq!(error("# one\n{\n  # two\n  ]\n}"), "line 4 column 3: not valid JSON: key must be a string");
        assert!(error("{} # after a value").starts_with("line 1 column 4: not valid JSON"));
        assert!(error("# nothing else").contains("not valid JSON: EOF"), "{}", error("# nothing else"));
    }
}

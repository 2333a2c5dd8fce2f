//! Registry files: contracts, nodes and callers as data, read into types of `core` that cannot be wrong.
//!
//! A file with any fault is not used at all, and every fault of every file is reported at once with
//! its place and what to write instead. Lines that begin with `#` are comments. Stored snapshots never change,
//! whatever happens here.

mod api_clients;
mod contract;
mod inbox_clients;
mod nodes;
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

use self::targets::Targets;

/// Where the files are. Those that may be left out open a front door each.
#[derive(Clone, Debug)]
pub struct RegistryFiles {
    pub targets: PathBuf,
    pub nodes: Option<PathBuf>,
    pub api_clients: Option<PathBuf>,
    pub inbox_clients: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("cannot read {}: {source}; name the file with {setting}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error, setting: &'static str },
    #[error("{} has {} to mend:{}", path.display(), counted(errors.len()), lines(errors))]
    Faulty { path: PathBuf, errors: Vec<LocatedError> },
}

/// What is wrong with which file.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct RegistryError(Vec<FileError>);

fn counted(errors: usize) -> String {
    if errors == 1 { "1 fault".to_owned() } else { format!("{errors} faults") }
}

fn lines(errors: &[LocatedError]) -> String {
    errors.iter().map(|fault| format!("\n  {fault}")).collect()
}

/// Contracts, nodes and callers in force.
#[derive(Debug)]
pub struct Registry {
    targets: Targets,
    /// None if no file was given.
    nodes: Option<HashMap<String, Arc<ManagementNode>>>,
    /// Who may call; none if no file was given.
    pub identities: Option<Identities>,
    /// Whose submissions the inbox takes; none if no file was given.
    pub inbox: Option<InboxClients>,
}

/// By slug.
pub type InboxClients = HashMap<String, Arc<InboxClient>>;

impl Registry {
    pub fn load(files: &RegistryFiles, variables: &Variables) -> Result<Self, RegistryError> {
        let mut errors = Vec::new();
        let mut registry = Self { targets: HashMap::new(), nodes: None, identities: None, inbox: None };
        let targets = read(&files.targets, "--registry or SM_REGISTRY", |text| targets::parse(text, variables));
        targets.map(|targets| registry.targets = targets).unwrap_or_else(|error| errors.push(error));
        if let Some(path) = &files.nodes {
            let nodes = read(path, "--nodes or SM_NODES", nodes::parse);
            nodes.map(|nodes| registry.nodes = Some(nodes)).unwrap_or_else(|error| errors.push(error));
        }
        if let Some(path) = &files.api_clients {
            let beside = path.parent().unwrap_or(Path::new("."));
            let clients = read(path, "--api-clients or SM_API_CLIENTS", |text| api_clients::parse(text, beside));
            clients.map(|clients| registry.identities = Some(clients)).unwrap_or_else(|error| errors.push(error));
        }
        if let Some(path) = &files.inbox_clients {
            let setting = "--inbox-clients or SM_INBOX_CLIENTS";
            let clients = read(path, setting, |text| inbox_clients::parse(text, variables));
            clients.map(|clients| registry.inbox = Some(clients)).unwrap_or_else(|error| errors.push(error));
        }
        if errors.is_empty() { Ok(registry) } else { Err(RegistryError(errors)) }
    }

    /// Reads a registry of targets alone; all of its faults if there is any, among them variables that
    /// are not set.
    pub fn parse(text: &str, variables: &Variables) -> Result<Self, Vec<LocatedError>> {
        targets::parse(text, variables).map(|targets| Self { targets, nodes: None, identities: None, inbox: None })
    }

    /// The same with nodes and callers.
    pub fn with_jobs(self, nodes: &str, api_clients: &str) -> Result<Self, Vec<LocatedError>> {
        let identities = api_clients::parse(api_clients, Path::new("."))?;
        Ok(Self { nodes: Some(nodes::parse(nodes)?), identities: Some(identities), ..self })
    }

    /// The same with clients of the inbox.
    pub fn with_inbox(self, clients: &str, variables: &Variables) -> Result<Self, Vec<LocatedError>> {
        Ok(Self { inbox: Some(inbox_clients::parse(clients, variables)?), ..self })
    }

    pub fn contract(&self, target: &TargetName) -> Option<Arc<ContractSnapshot>> {
        self.targets.get(target).map(|target| Arc::clone(&target.snapshot))
    }

    /// The bounds that a target, or the node that a contract is for, has of its own.
    pub fn limits(&self, target: &TargetName) -> TargetLimits {
        if let Some(target) = self.targets.get(target) {
            return target.limits;
        }
        let node = target.as_str().strip_prefix(nodes::TARGET_PREFIX).and_then(|id| self.node(id));
        TargetLimits { attempt_timeout: node.and_then(|node| node.attempt_timeout), ..TargetLimits::default() }
    }

    /// Those of every target that has any.
    pub fn all_limits(&self) -> HashMap<TargetName, TargetLimits> {
        let limited = self.targets.iter().filter(|(_, target)| target.limits != TargetLimits::default());
        limited.map(|(name, target)| (name.clone(), target.limits)).collect()
    }

    /// Whether jobs are taken: there are nodes, and callers that may be known.
    pub fn takes_jobs(&self) -> bool {
        self.nodes.is_some() && self.identities.is_some()
    }

    pub fn node(&self, id: &str) -> Option<Arc<ManagementNode>> {
        self.nodes.as_ref()?.get(id).cloned()
    }

    /// All contracts, of targets and nodes, in no particular order.
    pub fn contracts(&self) -> impl Iterator<Item = Arc<ContractSnapshot>> {
        let of_nodes = self.nodes.iter().flat_map(HashMap::values).map(|node| Arc::clone(&node.contract));
        self.targets.values().map(|target| Arc::clone(&target.snapshot)).chain(of_nodes)
    }

    /// What is in it, in few words.
    pub fn summary(&self) -> String {
        let counted = |count: Option<usize>, what: &str| count.map(|count| format!(" {what}={count}"));
        let nodes = counted(self.nodes.as_ref().map(HashMap::len), "nodes");
        let clients = counted(self.identities.as_ref().map(Identities::len), "api_clients");
        let inbox = counted(self.inbox.as_ref().map(HashMap::len), "inbox_clients");
        let others: String = [nodes, clients, inbox].into_iter().flatten().collect();
        format!("targets={}{others}", self.targets.len())
    }
}

/// What is wrong with a file of API clients, if anything is.
pub fn faults_of_api_clients(text: &str) -> Vec<String> {
    let errors = api_clients::parse(text, Path::new(".")).err().unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

/// The JSON object that a registry file holds besides its comments.
fn document(text: &str) -> Result<Map<String, Value>, Vec<LocatedError>> {
    parse_object(without_comments(text).as_bytes())
}

/// The text with an empty line for each comment, so that errors name the lines of the file. A string cannot hold a line
/// break in JSON, so no such line is part of one.
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
    parse(&text).map_err(|errors| FileError::Faulty { path: path.to_owned(), errors })
}

/// The registry that requests see; replaced as a whole when the files are reloaded.
#[derive(Clone)]
pub struct CurrentRegistry(Arc<RwLock<Arc<Registry>>>);

impl CurrentRegistry {
    pub fn new(registry: Registry) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(registry))))
    }

    pub fn get(&self) -> Arc<Registry> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the files into use for what comes from now on; on any fault all that was stays.
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
        assert!(error("{} # behind a value").starts_with("line 1 column 4: not valid JSON"));
        assert!(error("# nothing else").contains("not valid JSON: EOF"), "{}", error("# nothing else"));
    }
}

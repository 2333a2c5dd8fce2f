//! `token new`: makes a token, prints it once, and what to write down instead of it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::config::registry::faults_of_api_clients;
use crate::domain::client::Scope;

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Make a token of 32 random bytes; prints it once, with the entry to add to the file of API clients
    #[command(
        after_help = "Example:\n  submission-manager token new --client bff --scope jobs:submit --scope jobs:read \\\n    \
        --tenant acme --workspace w1 --workspace w2"
    )]
    New(NewArgs),
}

#[derive(Args)]
pub struct NewArgs {
    /// The name of the client
    #[arg(long, default_value = "new-client", value_name = "CLIENT-ID")]
    client: String,
    /// What it may do; give it several times for more
    #[arg(long = "scope", default_value = "jobs:submit", value_parser = scope, value_name = "SCOPE")]
    scopes: Vec<&'static str>,
    /// The tenant it acts for
    #[arg(long, value_name = "TENANT-ID")]
    tenant: Option<String>,
    /// Workspaces of that tenant; all if none is given
    #[arg(long = "workspace", requires = "tenant", value_name = "WORKSPACE-ID")]
    workspaces: Vec<String>,
}

/// What all our tokens begin with, so that scanners for leaked secrets can tell them.
const PREFIX: &str = "smt_";

/// A new token.
pub fn random() -> Result<String, String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| format!("there are no random numbers: {error}"))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// As it stands in the file of API clients.
pub fn sha256_of(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn run(command: TokenCommand) -> Result<(), String> {
    let TokenCommand::New(args) = command;
    let token = random()?;
    let entry = entry(&args, &token);
    let errors = faults_of_api_clients(&json!({ "clients": [&entry] }).to_string());
    if !errors.is_empty() {
        return Err(format!("that would not be taken: {}", errors.join("; ")));
    }
    let entry = serde_json::to_string_pretty(&entry).map_err(|error| error.to_string())?;
    println!("token, shown this once:\n\n  {token}\n\nadd to the clients of SM_API_CLIENTS, then send SIGHUP:\n");
    println!("{entry}");
    Ok(())
}

fn entry(args: &NewArgs, token: &str) -> Value {
    let mut entry = json!({ "clientId": args.client, "tokenSha256": sha256_of(token), "scopes": args.scopes });
    let needed = args.scopes.iter().filter_map(|name| Scope::parse(name)).any(Scope::needs_tenants);
    if args.tenant.is_some() || needed {
        let all = vec!["*".to_owned()];
        let workspaces = if args.workspaces.is_empty() { &all } else { &args.workspaces };
        let tenant = args.tenant.as_deref().unwrap_or("the-tenant");
        entry["tenants"] = json!([{ "tenantId": tenant, "workspaceIds": workspaces }]);
    }
    entry
}

fn scope(text: &str) -> Result<&'static str, String> {
    let known = || format!("must be one of {}", Scope::ALL.map(Scope::as_str).join(", "));
    Scope::parse(text).map(Scope::as_str).ok_or_else(known)
}

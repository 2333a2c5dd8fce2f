//! The `token new` command: creates a bearer token and prints it once, with the entry for the API client file, which
//! contains only the hash of the token.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::CommandResult;
use crate::config::registry::errors_in_api_clients;
use crate::domain::client::Scope;
use crate::platform::errors::Context;

#[derive(Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token from 32 random bytes, and print it with the entry to add to the API client file
    #[command(
        after_help = "Example:\n  submission-manager token new --client bff --scope jobs:submit --scope jobs:read \\\n    \
        --tenant acme --workspace w1 --workspace w2"
    )]
    New(NewArgs),
}

#[derive(Args)]
pub(super) struct NewArgs {
    /// The id of the client
    #[arg(long, default_value = "new-client", value_name = "CLIENT-ID")]
    client: String,
    /// A scope of the client; repeat the flag for several scopes
    #[arg(long = "scope", default_value = "jobs:submit", value_parser = scope, value_name = "SCOPE")]
    scopes: Vec<&'static str>,
    /// The tenant that the client acts for
    #[arg(long, value_name = "TENANT-ID")]
    tenant: Option<String>,
    /// A workspace of that tenant; repeat the flag for several; without it the client acts for all workspaces
    #[arg(long = "workspace", requires = "tenant", value_name = "WORKSPACE-ID")]
    workspaces: Vec<String>,
}

/// The prefix of every token, by which scanners for leaked secrets recognize it.
const PREFIX: &str = "smt_";

/// Creates a random token.
pub(super) fn random() -> CommandResult<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context(|| "cannot get random numbers from the system")?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// The hash of a token, as the API client file contains it.
pub(super) fn sha256_of(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn run(command: TokenCommand) -> CommandResult {
    let TokenCommand::New(args) = command;
    let token = random()?;
    let entry = entry(&args, &token);
    let errors = errors_in_api_clients(&json!({ "clients": [&entry] }).to_string());
    if !errors.is_empty() {
        return Err(format!("the new entry would be invalid: {}", errors.join("; ")).into());
    }
    let entry = serde_json::to_string_pretty(&entry)?;
    println!("New token, which is not shown again:\n\n  {token}\n");
    println!("Add this entry to the clients in the file of SM_API_CLIENTS, then send SIGHUP to the service:\n");
    println!("{entry}");
    Ok(())
}

fn entry(args: &NewArgs, token: &str) -> Value {
    let mut entry = json!({ "clientId": args.client, "tokenSha256": sha256_of(token), "scopes": args.scopes });
    let needs_tenant = args.scopes.iter().filter_map(|name| Scope::parse(name)).any(Scope::needs_tenants);
    if args.tenant.is_some() || needs_tenant {
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

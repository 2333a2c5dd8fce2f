//! Reads `api_clients.json`: the clients that may call the API, their scopes, and their tenants and workspaces.
//!
//! The file contains hashes of tokens and never a token.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::config::identity::{ClaimNames, Identities, JwtVerifier, KnownToken};
use crate::config::json_fields::{ErrorList, Fields, LocatedError};
use crate::domain::client::{ApiClient, Scope, Workspaces};
use crate::domain::intent::checked_name;

/// Reads the text of the file. Paths in it are relative to `directory`.
pub(super) fn parse(text: &str, directory: &Path) -> Result<Identities, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let jwt = top.object("jwt").and_then(|fields| jwt(&fields, directory));
    let mut identities = Identities { tokens: Vec::new(), jwt };
    let (mut ids, mut hashes) = (HashMap::new(), HashMap::new());
    // The list may be empty only if signed tokens are accepted.
    let only_jwt = document.get("clients").and_then(Value::as_array).is_some_and(Vec::is_empty) && top.has("jwt");
    let clients = if only_jwt { Vec::new() } else { top.objects("clients", "list the clients that may call the API") };
    top.mark_known("clients");
    for (index, fields) in clients {
        let client = client(&fields);
        let sha256 = token_hash(&fields);
        fields.reject_unknown_fields();
        if let Some(sha256) = sha256
            && let Some(first) = hashes.insert(sha256, index)
        {
            fields.error_at(
                "tokenSha256",
                format!("is already used by clients[{first}]; every client needs a token of its own"),
            );
        }
        let Some(client) = client else { continue };
        if let Some(first) = ids.insert(client.id.clone(), index) {
            fields.error_at(
                "clientId",
                format!("{:?} is already used by clients[{first}]; ids must be unique", client.id),
            );
        }
        identities.tokens.extend(sha256.map(|sha256| KnownToken { sha256, client: Arc::new(client) }));
    }
    top.reject_unknown_fields();
    errors.into_result(identities)
}

fn client(fields: &Fields<'_>) -> Option<ApiClient> {
    let id = fields
        .text("clientId", "name the client")
        .and_then(|raw| checked_name(raw).map_err(|error| fields.error_at("clientId", error.to_string())).ok());
    let scopes = scopes(fields);
    let tenants = tenants(fields);
    if tenants.is_empty() && !fields.has("tenants") && scopes.iter().any(|scope| scope.needs_tenants()) {
        fields.error_at("tenants", "is missing; scopes for jobs need it: list the tenants that the client acts for");
    }
    Some(ApiClient { id: id?.to_string(), scopes, tenants })
}

fn token_hash(fields: &Fields<'_>) -> Option<[u8; 32]> {
    const EXPECTED: &str = "must be 64 hex digits, as 'submission-manager token new' prints them";
    let raw = fields.text("tokenSha256", "make one with 'submission-manager token new'")?;
    let byte = |index: usize| raw.get(index * 2..index * 2 + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let fine = raw.len() == 64 && raw.bytes().all(|b| b.is_ascii_hexdigit());
    let mut hash = [0; 32];
    for (index, target) in hash.iter_mut().enumerate() {
        match byte(index).filter(|_| fine) {
            Some(byte) => *target = byte,
            None => {
                fields.error_at("tokenSha256", EXPECTED);
                return None;
            }
        }
    }
    Some(hash)
}

fn scopes(fields: &Fields<'_>) -> BTreeSet<Scope> {
    const NAME: &str = "scopes";
    let known = Scope::ALL.map(Scope::as_str).join(", ");
    if !fields.has(NAME) {
        fields.error_at(NAME, format!("is missing; list what the client may do: {known}"));
    }
    let names = fields.names(NAME);
    if fields.has(NAME) && names.is_empty() {
        fields.error_at(NAME, format!("must not be empty; known scopes are {known}"));
    }
    let mut scopes = BTreeSet::new();
    for name in names {
        match Scope::parse(name) {
            Some(scope) => drop(scopes.insert(scope)),
            None => fields.error_at(NAME, format!("{name:?} is not a scope; known scopes are {known}")),
        }
    }
    scopes
}

fn tenants(fields: &Fields<'_>) -> BTreeMap<String, Workspaces> {
    let mut tenants = BTreeMap::new();
    if !fields.has("tenants") {
        fields.mark_known("tenants");
        return tenants;
    }
    for (_, fields) in fields.objects("tenants", "list the tenants that the client acts for, or remove the field") {
        let id = fields
            .text("tenantId", "name the tenant")
            .and_then(|raw| checked_name(raw).map_err(|error| fields.error_at("tenantId", error.to_string())).ok());
        if !fields.has("workspaceIds") {
            fields.error_at("workspaceIds", "is missing; list the workspaces, or [\"*\"] for all");
        }
        let names = fields.names("workspaceIds");
        let workspaces = Workspaces::of(names);
        if fields.has("workspaceIds") && workspaces.is_none() {
            fields.error_at("workspaceIds", "must list workspaces, or be [\"*\"] alone for all");
        }
        fields.reject_unknown_fields();
        let (Some(id), Some(workspaces)) = (id, workspaces) else { continue };
        if tenants.insert(id.to_string(), workspaces).is_some() {
            fields
                .error_at("tenantId", format!("duplicate value {id:?}; list all workspaces of a tenant in one entry"));
        }
    }
    tenants
}

fn jwt(fields: &Fields<'_>, directory: &Path) -> Option<JwtVerifier> {
    let file = fields.text("jwksFile", "name the file with the issuer's key set");
    let issuer = fields.text("issuer", "write the value that the claim iss must have");
    let audience = fields.text("audience", "write the value that the claim aud must contain");
    let defaults = ClaimNames::default();
    let claim = |name, default: String| fields.optional_text(name).map_or(default, str::to_owned);
    let claims = ClaimNames {
        tenant: claim("tenantClaim", defaults.tenant),
        workspaces: claim("workspacesClaim", defaults.workspaces),
        scopes: claim("scopesClaim", defaults.scopes),
    };
    fields.reject_unknown_fields();
    let path = directory.join(file?);
    let report = |problem: String| fields.error_at("jwksFile", format!("{} {problem}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| report(format!("cannot be read: {error}"))).ok()?;
    JwtVerifier::new(&text, issuer?, audience?, claims).map_err(report).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn errors(document: &Value) -> Vec<String> {
        let parsed = parse(&document.to_string(), Path::new("/nowhere"));
        parsed.unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_sample_and_the_schema_agree_with_the_code() {
        let sample = include_str!("../../../registry/api_clients.json");
        let schema: Value = serde_json::from_str(include_str!("../../../registry/api_clients.schema.json")).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert_eq!(parse(sample, Path::new(".")).unwrap().len(), 1);
        assert!(validator.is_valid(&sample.parse().unwrap()));
        let entry = |change: fn(&mut Value)| {
            let mut entry = json!({ "clientId": "bff", "tokenSha256": "ab".repeat(32), "scopes": ["jobs:read"],
                "tenants": [{ "tenantId": "acme", "workspaceIds": ["w1"] }] });
            change(&mut entry);
            json!({ "clients": [entry] })
        };
        for (name, document, fine) in [
            ("good", entry(|_| ()), true),
            ("all workspaces", entry(|e| e["tenants"][0]["workspaceIds"] = json!(["*"])), true),
            (
                "no tenants, none needed",
                entry(|e| {
                    *e = json!({ "clientId": "a", "tokenSha256": "00".repeat(32),
                "scopes": ["intents:read"] })
                }),
                true,
            ),
            ("no token", entry(|e| drop(e.as_object_mut().unwrap().remove("tokenSha256"))), false),
            ("short hash", entry(|e| e["tokenSha256"] = "abcd".into()), false),
            ("not hex", entry(|e| e["tokenSha256"] = "zz".repeat(32).into()), false),
            ("unknown scope", entry(|e| e["scopes"] = json!(["jobs:delete"])), false),
            ("no scopes", entry(|e| e["scopes"] = json!([])), false),
            ("no workspaces", entry(|e| e["tenants"][0]["workspaceIds"] = json!([])), false),
            ("the token itself", entry(|e| e["token"] = "t".into()), false),
            ("no clients", json!({ "clients": [] }), false),
        ] {
            let parsed = parse(&document.to_string(), Path::new("."));
            assert_eq!(parsed.is_ok(), fine, "{name}: code {parsed:?}");
            assert_eq!(validator.is_valid(&document), fine, "{name}: schema");
        }
        for scope in Scope::ALL {
            let mut document = entry(|_| ());
            document["clients"][0]["scopes"] = json!([scope.as_str()]);
            assert!(parse(&document.to_string(), Path::new(".")).is_ok() && validator.is_valid(&document));
        }
    }

    #[test]
    fn all_errors_are_reported_at_once_and_no_hash_is_repeated() {
        let hash = "0f".repeat(32);
        let document = json!({ "clients": [
            { "clientId": "a", "tokenSha256": hash, "scopes": ["jobs:submit"] },
            { "clientId": "a", "tokenSha256": hash, "scopes": ["intents:read", "root"], "colour": 1,
              "tenants": [{ "tenantId": "t", "workspaceIds": ["*", "w"] }, { "workspaceIds": ["w"] },
                          { "tenantId": "u", "workspaceIds": ["w"] }, { "tenantId": "u", "workspaceIds": ["v"] }] },
            7,
        ], "jwt": { "jwksFile": "keys.json", "issuer": 7 }});
        assert_eq!(
            errors(&document),
            [
                "jwt.issuer: must be a string, not a number",
                "jwt.audience: is missing; write the value that the claim aud must contain",
                "jwt.jwksFile: /nowhere/keys.json cannot be read: No such file or directory (os error 2)",
                "clients[2]: must be an object, not a number",
                "clients[0].tenants: is missing; scopes for jobs need it: list the tenants that the client acts for",
                "clients[1].scopes: \"root\" is not a scope; known scopes are jobs:submit, jobs:read, intents:write, \
                 intents:read, inbox:write, inbox:read, admin",
                "clients[1].tenants[0].workspaceIds: must list workspaces, or be [\"*\"] alone for all",
                "clients[1].tenants[1].tenantId: is missing; name the tenant",
                "clients[1].tenants[3].tenantId: duplicate value \"u\"; list all workspaces of a tenant in one entry",
                "clients[1].colour: unknown field; known fields are clientId, scopes, tenants, tokenSha256",
                "clients[1].tokenSha256: is already used by clients[0]; every client needs a token of its own",
                "clients[1].clientId: \"a\" is already used by clients[0]; ids must be unique",
            ]
        );
    }
}

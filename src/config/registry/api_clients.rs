//! `api_clients.json`: who may call, what each may do, and for which tenants and workspaces.
//!
//! Holds hashes of tokens, never a token.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::config::identity::{ClaimNames, Identities, JwtVerifier, KnownToken};
use crate::config::json_fields::{ErrorList, Fields, LocatedError};
use crate::domain::client::{ApiClient, Scope, Workspaces};
use crate::domain::intent::checked_name;

/// Reads the file; `beside` is where files that it names are looked for.
pub fn parse(text: &str, beside: &Path) -> Result<Identities, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let jwt = top.object("jwt").and_then(|fields| jwt(&fields, beside));
    let mut identities = Identities { tokens: Vec::new(), jwt };
    let (mut ids, mut hashes) = (HashMap::new(), HashMap::new());
    // With signed tokens there may be no others.
    let nobody = document.get("clients").and_then(Value::as_array).is_some_and(Vec::is_empty) && top.has("jwt");
    let clients = if nobody { Vec::new() } else { top.objects("clients", "list who may call") };
    top.mention("clients");
    for (index, fields) in clients {
        let client = client(&fields);
        let sha256 = token_hash(&fields);
        fields.no_others();
        if let Some(sha256) = sha256
            && let Some(first) = hashes.insert(sha256, index)
        {
            fields.fault("tokenSha256", format!("is also that of clients[{first}]; every client has its own token"));
        }
        let Some(client) = client else { continue };
        if let Some(first) = ids.insert(client.id.clone(), index) {
            fields.fault("clientId", format!("{:?} is also clients[{first}]; ids must be unique", client.id));
        }
        identities.tokens.extend(sha256.map(|sha256| KnownToken { sha256, client: Arc::new(client) }));
    }
    top.no_others();
    errors.into_result(identities)
}

fn client(fields: &Fields<'_>) -> Option<ApiClient> {
    let id = fields
        .text("clientId", "name the client")
        .and_then(|raw| checked_name(raw).map_err(|fault| fields.fault("clientId", fault.to_string())).ok());
    let scopes = scopes(fields);
    let tenants = tenants(fields);
    if tenants.is_empty() && !fields.has("tenants") && scopes.iter().any(|scope| scope.needs_tenants()) {
        fields.fault("tenants", "is missing; jobs are always of a tenant, so say which");
    }
    Some(ApiClient { id: id?.to_string(), scopes, tenants })
}

fn token_hash(fields: &Fields<'_>) -> Option<[u8; 32]> {
    const EXPECTED: &str = "must be 64 hex digits, as 'submission-manager token new' prints them";
    let raw = fields.text("tokenSha256", "make one with 'submission-manager token new'")?;
    let byte = |index: usize| raw.get(index * 2..index * 2 + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let fine = raw.len() == 64 && raw.bytes().all(|b| b.is_ascii_hexdigit());
    let mut hash = [0; 32];
    for (index, place) in hash.iter_mut().enumerate() {
        match byte(index).filter(|_| fine) {
            Some(byte) => *place = byte,
            None => {
                fields.fault("tokenSha256", EXPECTED);
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
        fields.fault(NAME, format!("is missing; list what it may do: {known}"));
    }
    let names = fields.names(NAME);
    if fields.has(NAME) && names.is_empty() {
        fields.fault(NAME, format!("must not be empty; known are {known}"));
    }
    let mut scopes = BTreeSet::new();
    for name in names {
        match Scope::parse(name) {
            Some(scope) => drop(scopes.insert(scope)),
            None => fields.fault(NAME, format!("{name:?} is not a scope; known are {known}")),
        }
    }
    scopes
}

fn tenants(fields: &Fields<'_>) -> BTreeMap<String, Workspaces> {
    let mut tenants = BTreeMap::new();
    if !fields.has("tenants") {
        fields.mention("tenants");
        return tenants;
    }
    for (_, fields) in fields.objects("tenants", "list for whom it acts, or leave it out") {
        let id = fields
            .text("tenantId", "name the tenant")
            .and_then(|raw| checked_name(raw).map_err(|fault| fields.fault("tenantId", fault.to_string())).ok());
        if !fields.has("workspaceIds") {
            fields.fault("workspaceIds", "is missing; list the workspaces, or [\"*\"] for all");
        }
        let names = fields.names("workspaceIds");
        let workspaces = Workspaces::of(names);
        if fields.has("workspaceIds") && workspaces.is_none() {
            fields.fault("workspaceIds", "must list workspaces, or be [\"*\"] alone for all");
        }
        fields.no_others();
        let (Some(id), Some(workspaces)) = (id, workspaces) else { continue };
        if tenants.insert(id.to_string(), workspaces).is_some() {
            fields.fault("tenantId", format!("repeats {id:?}; list all its workspaces in one place"));
        }
    }
    tenants
}

fn jwt(fields: &Fields<'_>, beside: &Path) -> Option<JwtVerifier> {
    let file = fields.text("jwksFile", "name the file with the issuer's key set");
    let issuer = fields.text("issuer", "write what the claim iss must be");
    let audience = fields.text("audience", "write what the claim aud must hold");
    let defaults = ClaimNames::default();
    let claim = |name, default: String| fields.optional_text(name).map_or(default, str::to_owned);
    let claims = ClaimNames {
        tenant: claim("tenantClaim", defaults.tenant),
        workspaces: claim("workspacesClaim", defaults.workspaces),
        scopes: claim("scopesClaim", defaults.scopes),
    };
    fields.no_others();
    let path = beside.join(file?);
    let fault = |what: String| fields.fault("jwksFile", format!("{} {what}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| fault(format!("cannot be read: {error}"))).ok()?;
    JwtVerifier::new(&text, issuer?, audience?, claims).map_err(fault).ok()
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
            ("nobody", json!({ "clients": [] }), false),
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
    fn all_faults_are_reported_at_once_and_no_hash_is_repeated() {
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
                "jwt.issuer: must be a string, this is a number",
                "jwt.audience: is missing; write what the claim aud must hold",
                "jwt.jwksFile: /nowhere/keys.json cannot be read: No such file or directory (os error 2)",
                "clients[2]: must be an object, this is a number",
                "clients[0].tenants: is missing; jobs are always of a tenant, so say which",
                "clients[1].scopes: \"root\" is not a scope; known are jobs:submit, jobs:read, intents:write, \
                 intents:read, inbox:write, inbox:read, admin",
                "clients[1].tenants[0].workspaceIds: must list workspaces, or be [\"*\"] alone for all",
                "clients[1].tenants[1].tenantId: is missing; name the tenant",
                "clients[1].tenants[3].tenantId: repeats \"u\"; list all its workspaces in one place",
                "clients[1].colour: is not a field here; known are clientId, scopes, tenants, tokenSha256",
                "clients[1].tokenSha256: is also that of clients[0]; every client has its own token",
                "clients[1].clientId: \"a\" is also clients[0]; ids must be unique",
            ]
        );
    }
}

//! An OpenID Connect provider that signs with its own keys and can be made to misbehave.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::form_urlencoded;

use super::Request;

pub(super) const CLIENT: &str = "console";
/// With characters that must be encoded before they are sent with basic auth.
pub(super) const SECRET: &str = "client secret: +%/=&";

/// What the provider does to a path instead of the right thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    Status(u16),
    Hang,
    /// A body of 200 KiB.
    Huge,
    NotJson,
}

type Change = fn(&mut Value);

struct State {
    url: String,
    keys: Vec<(String, EncodingKey, Value)>,
    /// The key that signs, by its place.
    signer: usize,
    /// The keys that the key set contains.
    published: Vec<usize>,
    codes: HashMap<String, Grant>,
    /// Changes the claims of tokens.
    claims: Change,
    /// Changes the configuration.
    discovery: Change,
    faults: HashMap<&'static str, Fault>,
    requests: Vec<String>,
    secret: String,
}

/// What belongs to a code.
struct Grant {
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

#[derive(Clone)]
pub(super) struct Provider {
    pub url: String,
    state: Arc<Mutex<State>>,
    handle: ServerHandle,
}

fn key(kid: &str) -> (String, EncodingKey, Value) {
    let key = EncodingKey::from_ec_der(&rcgen::KeyPair::generate().unwrap().serialize_der());
    let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap()).unwrap();
    jwk["kid"] = kid.into();
    (kid.to_owned(), key, jwk)
}

impl Provider {
    pub(super) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State {
            url: url.clone(),
            keys: ["first", "second", "third"].map(key).into(),
            signer: 0,
            published: vec![0],
            codes: HashMap::new(),
            claims: |_| (),
            discovery: |_| (),
            faults: HashMap::new(),
            requests: Vec::new(),
            secret: SECRET.to_owned(),
        }));
        let served = Arc::clone(&state);
        let server = HttpServer::new(move || {
            App::new().app_data(web::Data::from(Arc::clone(&served))).default_service(web::to(serve))
        });
        let server = server.workers(1).shutdown_timeout(0).disable_signals().listen(listener).unwrap().run();
        let handle = server.handle();
        actix::spawn(server);
        Self { url, state, handle }
    }

    pub(super) async fn stop(&self) {
        self.handle.stop(false).await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// Changes the claims of all tokens from now on.
    pub(super) fn claims(&self, change: Change) {
        self.change(|state| state.claims = change);
    }

    pub(super) fn discovery(&self, change: Change) {
        self.change(|state| state.discovery = change);
    }

    pub(super) fn fault(&self, path: &'static str, fault: Option<Fault>) {
        self.change(|state| match fault {
            Some(fault) => drop(state.faults.insert(path, fault)),
            None => drop(state.faults.remove(path)),
        });
    }

    /// Expects another client secret from now on.
    pub(super) fn expect_secret(&self, secret: &str) {
        self.change(|state| state.secret = secret.to_owned());
    }

    /// Signs with this key, and publishes these keys.
    pub(super) fn rotate(&self, signer: usize, published: &[usize]) {
        self.change(|state| (state.signer, state.published) = (signer, published.to_vec()));
    }

    /// How often a path was requested.
    pub(super) fn requests(&self, path: &str) -> usize {
        self.change(|state| state.requests.iter().filter(|request| *request == path).count())
    }

    /// A code for a sign-in, as the provider gives it to somebody who has signed in there.
    pub(super) fn code(&self, request: &Request) -> String {
        assert_eq!(request.get("response_type"), "code");
        assert_eq!(
            (request.get("client_id"), request.get("scope")),
            (CLIENT.to_owned(), "openid profile email".to_owned())
        );
        assert_eq!(request.get("code_challenge_method"), "S256");
        let grant = Grant {
            nonce: request.get("nonce"),
            challenge: request.get("code_challenge"),
            redirect_uri: request.get("redirect_uri"),
        };
        self.change(|state| {
            let code = format!("code-{}-PLANTED", state.codes.len());
            state.codes.insert(code.clone(), grant);
            code
        })
    }
}

async fn serve(request: HttpRequest, body: web::Bytes, state: web::Data<Mutex<State>>) -> HttpResponse {
    let path = request.path().to_owned();
    let fault = {
        let mut state = state.lock().unwrap();
        state.requests.push(path.clone());
        state.faults.get(path.as_str()).copied()
    };
    match fault {
        Some(Fault::Status(status)) => {
            return HttpResponse::build(status.try_into().unwrap()).body("PLANTED in an error");
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Huge) => return HttpResponse::Ok().body(format!("{{\"x\": \"{}\"}}", "x".repeat(200 * 1024))),
        Some(Fault::NotJson) => return HttpResponse::Ok().body("<html>PLANTED</html>"),
        None => {}
    }
    let mut state = state.lock().unwrap();
    match path.as_str() {
        "/.well-known/openid-configuration" => HttpResponse::Ok().json(state.document()),
        "/keys" => {
            let keys: Vec<_> = state.published.iter().map(|index| state.keys[*index].2.clone()).collect();
            HttpResponse::Ok().json(json!({ "keys": keys }))
        }
        "/token" => state.token(&request, &body),
        _ => HttpResponse::NotFound().finish(),
    }
}

impl State {
    fn document(&self) -> Value {
        let url = &self.url;
        let mut document = json!({ "issuer": url, "authorization_endpoint": format!("{url}/authorize?tenant=a"),
            "token_endpoint": format!("{url}/token"), "jwks_uri": format!("{url}/keys"),
            "end_session_endpoint": format!("{url}/end") });
        (self.discovery)(&mut document);
        document
    }

    fn token(&mut self, request: &HttpRequest, body: &[u8]) -> HttpResponse {
        let error = |error: &str| HttpResponse::BadRequest().json(json!({ "error": error }));
        let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let basic = STANDARD.encode(format!("{}:{}", encoded(CLIENT), encoded(&self.secret)));
        let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        if given != Some(&format!("Basic {basic}")) {
            return error("invalid_client");
        }
        let form: HashMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
        let Some(grant) = self.codes.remove(form.get("code").map_or("", String::as_str)) else {
            return error("invalid_grant");
        };
        let verifier = form.get("code_verifier").map_or("", String::as_str);
        let proven = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier)) == grant.challenge;
        if !proven || form["redirect_uri"] != grant.redirect_uri || form["grant_type"] != "authorization_code" {
            return error("invalid_grant");
        }
        let now = get_current_timestamp();
        let mut claims = json!({ "iss": self.url, "aud": CLIENT, "sub": "subject-1", "nonce": grant.nonce, "iat": now,
            "exp": now + 300, "preferred_username": "ada@example.com", "groups": ["staff", "ops"] });
        (self.claims)(&mut claims);
        let (kid, key, _) = &self.keys[self.signer];
        let header = Header { kid: Some(kid.clone()), ..Header::new(Algorithm::ES256) };
        let token = encode(&header, &claims, key).unwrap();
        HttpResponse::Ok().json(json!({ "id_token": token, "access_token": "PLANTED", "token_type": "Bearer" }))
    }
}

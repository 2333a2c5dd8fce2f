//! Login to a SQL Server with an access token from a file. The server here speaks only enough of the protocol to
//! receive the login, and then closes the connection.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::support::{Instance, PATIENCE, Site, site};

/// Two tokens of about the length of real ones.
fn tokens() -> [String; 2] {
    ["first", "second"].map(|name| format!("{name}.{}", "tr0ub4dor".repeat(150)))
}

/// A server that records what each login sends.
struct LoginWitness {
    address: SocketAddr,
    certificate: String,
    logins: mpsc::Receiver<Vec<u8>>,
}

impl LoginWitness {
    fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = made.cert.pem();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        tls.alpn_protocols = vec![b"tds/8.0".to_vec()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, logins) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(listener, TlsAcceptor::from(Arc::new(tls)), sender));
        });
        Self { address, certificate, logins }
    }
}

async fn serve(listener: std::net::TcpListener, tls: TlsAcceptor, logins: mpsc::Sender<Vec<u8>>) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        let Ok(mut client) = tls.accept(client).await else { continue };
        read_message(&mut client).await;
        // PRELOGIN with three options, each with its offset and length; the server asks for a token (option 6).
        let options = [0, 0, 16, 0, 6, 1, 0, 22, 0, 1, 6, 0, 23, 0, 1, 0xff, 16, 0, 0, 0, 0, 0, 0, 1];
        let mut answer = vec![4, 1, 0, 8 + options.len() as u8, 0, 0, 1, 0];
        answer.extend(options);
        client.write_all(&answer).await.unwrap();
        client.flush().await.unwrap();
        let login = read_message(&mut client).await;
        if logins.send(login).is_err() {
            return;
        }
    }
}

/// Reads a message of one or more packets, without their headers.
async fn read_message(from: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    const LAST: u8 = 1;
    let mut message = Vec::new();
    loop {
        let mut head = [0; 8];
        if from.read_exact(&mut head).await.is_err() {
            return message;
        }
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]])) - head.len()];
        if from.read_exact(&mut body).await.is_err() {
            return message;
        }
        message.extend(body);
        if head[1] & LAST != 0 {
            return message;
        }
    }
}

fn holds(message: &[u8], text: &str) -> bool {
    let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    message.windows(bytes.len()).any(|window| window == bytes)
}

fn write(site: &Site, name: &str, text: &str) -> std::path::PathBuf {
    let path = site.directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[actix::test]
async fn a_token_is_read_again_for_each_new_connection_and_shown_nowhere() {
    let (site, _gateway) = site();
    let witness = LoginWitness::start();
    let [first, second] = tokens();
    let certificate = write(&site, "server.pem", &witness.certificate);
    let token = write(&site, "token", &format!("{first}\n"));
    let port = witness.address.port();
    let store = format!(
        "Server=tcp:localhost,{port};Database=d;Encrypt=strict;TrustServerCertificateCA='{}'",
        certificate.display()
    );
    let mut command = site.command();
    command.env("SM_STORE", &store).env("SM_STORE_TOKEN_FILE", &token).env("SM_STORE_TIMEOUT", "5s");
    let instance = Instance::start(command);
    let login = witness.logins.recv_timeout(PATIENCE).unwrap();
    assert!(holds(&login, &first), "the first login has the first token");

    write(&site, "token", &second);
    let api = instance.api();
    // Each request makes another connection. The first may have started before the file changed.
    let mut sent: Vec<Vec<u8>> = Vec::new();
    while !sent.iter().any(|login| holds(login, &second)) {
        assert!(sent.len() < 50, "the second token is not used");
        assert_eq!(api.get("/readyz").await.status.as_u16(), 503);
        sent.extend(witness.logins.recv_timeout(Duration::from_millis(200)));
        sent.extend(witness.logins.try_iter());
    }

    std::fs::remove_file(&token).unwrap();
    let said = api.until("/readyz", |answer| answer.status.as_u16() == 503).await.text();
    let log = instance.log_lines().join("\n");
    for text in [&said, &log] {
        assert!(!text.contains("tr0ub4dor"), "{text}");
    }
}

#[actix::test]
async fn check_says_what_is_wrong_with_a_token_file() {
    let (site, _gateway) = site();
    let check = |store: &str, file: &std::path::Path| {
        let mut command = site.command();
        command.arg("check").env("SM_STORE", store).env("SM_STORE_TOKEN_FILE", file).env("SM_STORE_TIMEOUT", "1s");
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // No server listens at this address; the file is checked first.
    let store = "Server=tcp:127.0.0.1,1;Database=d";
    let (fine, said) = check(store, &site.directory.path().join("nowhere"));
    assert!(!fine && said.contains("SM_STORE_TOKEN_FILE") && said.contains("nowhere"), "{said}");
    let json = write(&site, "json", "{\"access_token\": \"tr0ub4dor\"}");
    let (fine, said) = check(store, &json);
    assert!(!fine && said.contains("nothing else, not JSON") && !said.contains("tr0ub4dor"), "{said}");
    let (fine, said) = check(&format!("{store};User Id=u"), &json);
    assert!(!fine && said.contains("User Id is not used with SM_STORE_TOKEN_FILE"), "{said}");
}

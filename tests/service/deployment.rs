//! The deployment files agree with the code: image, compose file, Kubernetes manifests, Prometheus, Grafana, and the
//! commands that containers run. Also serving over https.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use actix_web::http::StatusCode;
use serde_json::Value;
use submission_manager::config::registry::Registry;
use submission_manager::config::variables::Variables;

use crate::support::{Answer, BINARY, Instance, Killed, Site, site};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn help(command: &str) -> String {
    let output = Command::new(BINARY).args([command, "--help"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not text: {value}"))
}

/// Asserts that the command reads every one of these `SM_` variables.
fn assert_known<'a>(variables: impl Iterator<Item = &'a String>, command: &str) {
    // The help text has line breaks anywhere.
    let help = help(command);
    let known: BTreeSet<_> = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    for name in variables.filter(|name| name.starts_with("SM_")) {
        assert!(known.contains(name.as_str()), "{command} knows no {name}");
    }
}

#[test]
fn the_compose_file_agrees_with_the_code() {
    let compose = yaml("compose.yaml");
    let services = compose["services"].as_object().unwrap();
    let mounts = |service: &Value| -> Vec<(String, String)> {
        let volumes = service["volumes"].as_array().cloned().unwrap_or_default();
        let pair = |volume: &Value| {
            let mut parts = string(volume).split(':');
            (parts.next().unwrap().to_owned(), parts.next().unwrap().to_owned())
        };
        volumes.iter().map(pair).collect()
    };
    for (name, service) in services {
        for (from, _) in mounts(service).iter().filter(|(from, _)| from.starts_with("./")) {
            assert!(root().join(from).exists(), "{name} mounts {from}, which is not there");
        }
        let waited_for = match &service["depends_on"] {
            Value::Object(map) => map.keys().cloned().collect(),
            Value::Array(list) => list.iter().map(|name| string(name).to_owned()).collect(),
            _ => Vec::new(),
        };
        for other in waited_for {
            assert!(services.contains_key(&other), "{name} waits for {other}");
        }
    }
    for name in ["sm-1", "sm-2", "sm-3"] {
        let instance = &services[name];
        assert_known(instance["environment"].as_object().unwrap().keys(), "serve");
        assert_eq!((&instance["read_only"], string(&instance["image"])), (&Value::Bool(true), "submission-manager"));
        assert!(mounts(instance).contains(&("./deploy/compose/registry".to_owned(), "/registry".to_owned())));
        assert_eq!(string(&instance["environment"]["SM_REGISTRY"]), "/registry/submission_targets.json");
        assert_eq!(string(&instance["stop_grace_period"]), "75s");
    }
    assert_known(services["migrate"]["environment"].as_object().unwrap().keys(), "migrate");
    for (service, command) in [("migrate", "migrate"), ("gateways", "stand-in")] {
        assert_eq!(string(&services[service]["command"][0]), command);
        assert!(!help(command).is_empty());
    }
    let gateway =
        format!("http://gateways:{}", string(&services["gateways"]["command"][2]).rsplit_once(':').unwrap().1);
    let targets = text("deploy/compose/registry/submission_targets.json");
    let registry = Registry::parse(&targets, &Variables::from_fn(|_| None)).unwrap();
    assert!(registry.contracts().all(|contract| contract.contract.gateway_url.as_str() == gateway));
    let haproxy = text("deploy/haproxy.cfg");
    for name in ["SM_FRONT", "SM_STATS"] {
        assert!(haproxy.contains(&format!("presetenv {name}")), "{name}");
        let address = string(&services["haproxy"]["environment"][name]);
        assert!(address.starts_with("0.0.0.0:"), "{name}");
    }
    for number in 1..=3 {
        assert!(haproxy.contains(&format!("presetenv SM_{number}      sm-{number}:8082")));
    }
    // The password in the comment is the password of the console.
    let login = string(&services["sm-1"]["environment"]["SM_CONSOLE_AUTH"]);
    let hash = login.split_once(":-ops:").unwrap().1.trim_end_matches('}').replace("$$", "$");
    assert!(bcrypt::verify("submission", &hash).unwrap());
}

#[test]
fn the_workflow_runs_targets_that_exist_with_the_toolchain_of_the_package() {
    let workflow = yaml(".github/workflows/ci.yml");
    let runs = |job: &str| -> String {
        let steps = workflow["jobs"][job]["steps"].as_array().unwrap();
        steps.iter().filter_map(|step| step["run"].as_str()).collect::<Vec<_>>().join("\n")
    };
    let makefile = text("Makefile");
    for (job, target) in [("check", "check"), ("sqlserver", "test-sqlserver")] {
        assert!(runs(job).lines().any(|line| line == format!("make {target}")), "{job}");
        assert!(makefile.contains(&format!("\n{target}:")), "{target}");
    }
    let cargo = text("Cargo.toml");
    let version = cargo.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert_eq!(string(&workflow["jobs"]["check"]["container"]), format!("rust:{version}-bookworm"));
    assert!(runs("sqlserver").contains(&format!("rustup default {version}\n")));
}

#[actix::test]
async fn prometheus_and_grafana_use_only_existing_metrics() {
    let prometheus = yaml("deploy/prometheus.yml");
    let compose = yaml("compose.yaml");
    for job in prometheus["scrape_configs"].as_array().unwrap() {
        for target in job["static_configs"][0]["targets"].as_array().unwrap() {
            let host = string(target).split(':').next().unwrap();
            assert!(compose["services"].get(host).is_some(), "{host}");
        }
    }
    let mounts: Vec<_> = compose["services"]["grafana"]["volumes"].as_array().unwrap().iter().map(string).collect();
    let dashboards = yaml("deploy/grafana/provisioning/dashboards/submission-manager.yml");
    let folder = string(&dashboards["providers"][0]["options"]["path"]);
    assert!(mounts.iter().any(|mount| mount.contains(&format!(":{folder}/submission-manager.json"))), "{mounts:?}");
    let source = yaml("deploy/grafana/provisioning/datasources/prometheus.yml");
    assert_eq!(string(&source["datasources"][0]["url"]), "http://prometheus:9090");

    let (site, _gateway) = site();
    let instance = site.start();
    let shown = instance.api().get("/metrics").await.text();
    // A histogram has several series; the type is that of the whole.
    let histogram = |name: &str| {
        let base = ["_bucket", "_count", "_sum"].into_iter().find_map(|suffix| name.strip_suffix(suffix));
        base.is_some_and(|base| shown.contains(&format!("# TYPE {base} histogram")))
    };
    for rule in yaml("deploy/alerts.yml")["groups"][0]["rules"].as_array().unwrap() {
        let expression = string(&rule["expr"]);
        let names = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: BTreeSet<_> = names.filter(|name| name.starts_with("submission_")).collect();
        if names.is_empty() {
            // Prometheus itself provides this metric for every instance.
            assert_eq!(expression, format!("up{{job={}}} == 0", prometheus["scrape_configs"][0]["job_name"]));
        }
        for name in names {
            let exists = histogram(name) || shown.contains(&format!("# TYPE {name} "));
            assert!(exists, "{}: there is no {name}", rule["alert"]);
        }
        assert!(rule["annotations"]["summary"].is_string());
    }
}

#[test]
fn the_alerts_fire_when_they_should() {
    for (command, file) in [("check", "deploy/alerts.yml"), ("test", "deploy/alerts_test.yml")] {
        let output = Command::new("promtool").args([command, "rules", file]).current_dir(root()).output();
        let output = output.unwrap_or_else(|error| panic!("promtool: {error}; install the Debian package prometheus"));
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
    }
}

#[actix::test]
async fn the_kubernetes_manifests_agree_with_the_code() {
    let manifests = text("deploy/kubernetes/submission-manager.yaml");
    let documents: Vec<Value> =
        manifests.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect();
    let kind = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
    assert_known(kind("ConfigMap")["data"].as_object().unwrap().keys(), "serve");
    let pod = &kind("Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let names: Vec<_> =
        container["env"].as_array().unwrap().iter().map(|entry| string(&entry["name"]).to_owned()).collect();
    assert_known(names.iter(), "serve");
    let listens = string(&kind("ConfigMap")["data"]["SM_LISTEN"]).rsplit_once(':').unwrap().1;
    assert_eq!(container["ports"][0]["containerPort"].to_string(), listens);
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > 31 + 35, "requests and attempts end in order");
    let labels = &kind("Deployment")["spec"]["template"]["metadata"]["labels"];
    for selector in [
        &kind("Deployment")["spec"]["selector"]["matchLabels"],
        &kind("Service")["spec"]["selector"],
        &kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ] {
        assert_eq!(selector, labels);
    }
    for workload in ["Job", "Deployment"] {
        let pod = &kind(workload)["spec"]["template"]["spec"];
        let confined = &pod["containers"][0]["securityContext"];
        assert_eq!(
            (&pod["securityContext"]["runAsNonRoot"], &confined["readOnlyRootFilesystem"]),
            (&Value::Bool(true), &Value::Bool(true))
        );
        let version = concat!("submission-manager:", env!("CARGO_PKG_VERSION"));
        assert_eq!(pod["containers"][0]["image"], version, "{workload}");
    }
    // Followers are ready too, so they get requests.
    let (site, _gateway) = site();
    let (one, two) = (site.start(), site.start());
    for instance in [&one, &two] {
        for probe in ["readinessProbe", "livenessProbe"] {
            let path = string(&container[probe]["httpGet"]["path"]);
            assert_eq!(instance.api().get(path).await.status, StatusCode::OK, "{probe}");
        }
    }
}

/// A proxy that gives up before the service or a gateway does turns good answers into unknown outcomes.
#[test]
fn haproxy_waits_longer_than_the_service_does() {
    let proxy = text("deploy/haproxy.cfg");
    let seconds = |name: &str| {
        let value = proxy.lines().find_map(|line| line.trim().strip_prefix(&format!("timeout {name} ")));
        value.and_then(|value| value.strip_suffix('s')?.parse::<u64>().ok()).unwrap_or_else(|| panic!("no {name}"))
    };
    // waitSeconds ends at 30 s, an attempt at 35 s.
    assert!(help("serve").contains("[env: SM_ATTEMPT_TIMEOUT=] [default: 35s]"));
    assert!(seconds("server") > 35, "timeout server");
    // Idle connections are closed by the service after 75 s; the proxy must not use one that is being closed.
    assert!(seconds("client") <= 75, "timeout client");
}

#[test]
fn the_image_runs_existing_commands() {
    let dockerfile = text("Dockerfile");
    let has = |line: &str| assert!(dockerfile.lines().any(|other| other.trim() == line), "no {line}");
    has("USER 65532:65532");
    has("ENTRYPOINT [\"submission-manager\"]");
    has("CMD [\"serve\"]");
    has("VOLUME /data");
    assert!(dockerfile.contains("CMD [\"submission-manager\", \"health\"]"));
    let toolchain = text("Cargo.toml");
    let version = toolchain.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(dockerfile.contains(&format!("FROM rust:{version}-slim")), "built with the toolchain that it needs");
    let variables: Vec<_> =
        dockerfile.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).map(str::to_owned).collect();
    assert_known(variables.iter(), "serve");
    // The ignore file lets through everything that the build copies.
    let ignore = text(".dockerignore");
    for copied in
        dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--from"))
    {
        for name in copied.split_whitespace().rev().skip(1) {
            assert!(ignore.lines().any(|line| line == format!("!{name}")) && root().join(name).exists(), "{name}");
        }
    }
}

#[actix::test]
async fn the_health_command_reports_whether_the_service_is_alive() {
    let (site, _gateway) = site();
    let mut instance = site.start();
    let address = instance.url.trim_start_matches("http://").to_owned();
    let health = |listen: String| {
        let run = move || Command::new(BINARY).arg("health").env("SM_LISTEN", listen).output().unwrap();
        actix_web::rt::task::spawn_blocking(run)
    };
    assert!(health(address.clone()).await.unwrap().status.success());
    let everywhere = format!("0.0.0.0:{}", address.rsplit_once(':').unwrap().1);
    assert!(health(everywhere).await.unwrap().status.success());
    instance.kill();
    let dead = health(address).await.unwrap();
    assert!(!dead.status.success() && String::from_utf8_lossy(&dead.stderr).contains("does not respond"));
}

#[actix::test]
async fn stand_in_gateways_run_alone() {
    let mut command = Command::new(BINARY);
    command.args(["stand-in", "--listen", "127.0.0.1:0"]).stdout(std::process::Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.0.stdout.take().unwrap()), &mut line).unwrap();
    let url =
        line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().trim_end_matches(';').to_owned();
    let site = Site::new(&url);
    let instance = site.start();
    let answer = instance.api().submit("a", "once", serde_json::json!({}), "?waitSeconds=30").await.json();
    assert_eq!(answer["status"], "accepted");
}

fn write(path: &Path, text: &str) -> PathBuf {
    std::fs::write(path, text).unwrap();
    path.to_owned()
}

#[actix::test]
async fn clients_can_be_served_over_https() {
    let (site, _gateway) = site();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = write(&site.directory.path().join("cert.pem"), &made.cert.pem());
    let key = write(&site.directory.path().join("key.pem"), &made.signing_key.serialize_pem());
    let mut command = site.command();
    command.env("SM_TLS_CERT", &certificate).env("SM_TLS_KEY", &key);
    let instance = Instance::start(command);
    let port = instance.url.rsplit_once(':').unwrap().1.to_owned();
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let tls = submission_manager::http_client::tls_config(Some(&certificate)).unwrap();
    let client = awc::Client::builder().connector(awc::Connector::new().rustls_0_23(tls)).finish();
    let mut response = client.get(format!("https://localhost:{port}/readyz")).send().await.unwrap();
    let answer = Answer {
        status: response.status(),
        headers: response.headers().clone(),
        body: response.body().await.unwrap().to_vec(),
    };
    assert_eq!((answer.status, answer.header("x-content-type-options")), (StatusCode::OK, Some("nosniff")));
    assert_eq!(answer.header("strict-transport-security"), Some("max-age=31536000"));
    assert_eq!(site.start().api().get("/readyz").await.header("strict-transport-security"), None, "only over https");
    assert!(
        awc::Client::default().get(format!("http://localhost:{port}/readyz")).send().await.is_err(),
        "not in the clear"
    );

    for (certificate, key, said) in [
        (site.registry(), key.clone(), "SM_TLS_CERT"),
        (certificate.clone(), certificate.clone(), "SM_TLS_KEY"),
        (certificate.clone(), site.directory.path().join("nowhere.pem"), "SM_TLS_KEY"),
    ] {
        let output =
            site.command().arg("check").env("SM_TLS_CERT", certificate).env("SM_TLS_KEY", key).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(said), "{error}");
    }
    let alone = site.command().env("SM_TLS_CERT", &certificate).output().unwrap();
    assert!(!alone.status.success());
}

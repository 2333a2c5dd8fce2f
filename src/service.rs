//! Starts and stops one instance of the service: opens the store, starts the engine and the HTTP server on it, and handles
//! signals. The parts themselves live in the other folders.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::web::ServiceConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::api;
use crate::config::registry::{CurrentRegistry, Registry, RegistryError, RegistryFiles};
use crate::config::settings::{AuthMode, Config, ConfigError, Switch};
use crate::config::variables::Variables;
use crate::console::{self, Console};
use crate::engine::instance_report::InstanceReporter;
use crate::engine::leader::{EngineDeps, GatewayFactory, LeaderSettings, WebhookSenderFactory};
use crate::engine::webhooks::sender::{HttpWebhookSender, WebhookSender};
use crate::engine::webhooks::slots::MAX_TRIES as WEBHOOKS_IN_FLIGHT;
use crate::engine::{Engine, Threads};
use crate::gateway::Gateway;
use crate::gateway::client::HttpGateway;
use crate::http_client::{CertificateError, tls_config};
use crate::platform::clock::WallClock;
use crate::platform::descriptors::{self, Demand, TooFewFiles};
use crate::store::selection::StoreOpenError;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::{Collector, Tracer};
use crate::web::body::BodyBudget;
use crate::web::origin::Listener;
use crate::web::streams::StreamSlots;
use crate::web::tls::{self, TlsError};
use crate::web::{self, ShutdownFlag, WebDeps};

/// Why the service does not start. Each message says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    #[error(
        "cannot listen on {address}: {source}; stop the program that uses it, or set another address with --listen or \
         SM_LISTEN"
    )]
    Listen { address: String, source: std::io::Error },
    #[error(transparent)]
    Descriptors(#[from] TooFewFiles),
    #[error("cannot install signal handlers: {0}")]
    Signals(#[source] std::io::Error),
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A running instance of the service.
pub struct Service {
    pub engine: Engine,
    pub registry: CurrentRegistry,
    pub address: SocketAddr,
    metrics: Arc<Metrics>,
    console: Console,
    shutdown: ShutdownFlag,
    shutdown_delay: Duration,
    server: ServerHandle,
    tracer: Tracer,
    reporter: InstanceReporter,
    reporting: JoinHandle<()>,
}

impl Service {
    /// Starts an instance: it serves HTTP and competes for the lease when this returns.
    pub async fn start(config: &Config, registry: Registry, variables: Variables) -> Result<Self, StartError> {
        let settings = LeaderSettings::new(config)?;
        let auth = config.auth_mode()?;
        let limits = descriptors::share_out(descriptor_demand(config)?)?;
        let tls = tls_config(config.gateway_ca.as_deref())?;
        let https = https_of(config)?;
        let metrics = Arc::new(Metrics::new()?);
        let cannot_listen = |source| StartError::Listen { address: config.listen.clone(), source };
        let listener = web::bind(&config.listen).await.map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let migrate = config.migrate == Switch::On;
        let store = config.store.choice()?.open(migrate, Arc::clone(&metrics)).await?;
        let (attempts, webhooks) = (config.attempt_timeout, config.webhook_timeout);
        let in_flight = config.max_in_flight;
        let gateway: GatewayFactory = {
            let tls = Arc::clone(&tls);
            let metrics = Arc::clone(&metrics);
            Arc::new(move || -> Rc<dyn Gateway> {
                let gateway = HttpGateway::new(attempts, Arc::clone(&tls)).keeping(in_flight);
                Rc::new(gateway.reporting(&metrics))
            })
        };
        let sender: WebhookSenderFactory = {
            let tls = Arc::clone(&tls);
            let metrics = Arc::clone(&metrics);
            Arc::new(move || -> Rc<dyn WebhookSender> {
                let sender = HttpWebhookSender::new(webhooks, Arc::clone(&tls)).keeping(WEBHOOKS_IN_FLIGHT);
                Rc::new(sender.reporting(&metrics))
            })
        };
        let tracer = config.otlp_endpoint.clone().map(|endpoint| {
            let collector = Collector { endpoint, instance: settings.holder_id.to_string(), tls: Arc::clone(&tls) };
            Tracer::start(collector, Arc::clone(&metrics))
        });
        let tracer = tracer.unwrap_or_default();
        metrics.name_targets(registry.targets());
        let registry = CurrentRegistry::new(registry);
        let engine_deps = EngineDeps {
            gateway,
            attempt_timeout: config.attempt_timeout,
            sender,
            variables: variables.clone(),
            registry: registry.clone(),
            tracer: tracer.clone(),
        };
        let engine = Engine::start(store, settings, engine_deps, Arc::clone(&metrics), Threads::own());
        let shutdown = ShutdownFlag::default();
        let deps = WebDeps {
            store: engine.store.clone(),
            registry: registry.clone(),
            watchers: engine.watchers.clone(),
            events: engine.events.clone(),
            streams: StreamSlots::new(limits, Arc::clone(&metrics)),
            metrics: Arc::clone(&metrics),
            board: engine.board.clone(),
            shutdown: shutdown.clone(),
            bodies: BodyBudget::default(),
            max_payload_bytes: config.max_payload_bytes,
            auth,
            listener: Listener::new(address.ip()),
            variables,
            clock: WallClock::system(),
            tracer: tracer.clone(),
        };
        let console = Console::new(&config.console, address.ip(), https.is_some(), tls)?;
        console.warn_about_sign_in(&registry.get());
        let served = console.clone();
        let routes = move |routes: &mut ServiceConfig| {
            // The API comes first: its `/ui/history` lies under `/ui`, which the console would otherwise answer as a whole.
            routes.configure(api::routes).configure(|routes| console::routes(routes, served.clone()));
        };
        let server = web::start(deps, routes, listener, https, limits).map_err(cannot_listen)?;
        let handle = server.handle();
        actix::spawn(server);
        let version = env!("CARGO_PKG_VERSION");
        if auth == AuthMode::Off && !address.ip().is_loopback() {
            log::warn!(
                "open_to_all address={address} next=\"anyone who reaches this address can use the API without a token; \
                 set SM_AUTH=required and SM_API_CLIENTS, or restrict the network\""
            );
        }
        log::info!("listening address={address} holder_id={} version={version}", engine.board.holder_id);
        let shutdown_delay = config.shutdown_delay;
        let reporter = InstanceReporter::new(engine.store.clone(), engine.board.clone(), Arc::clone(&metrics));
        let reporting = actix::spawn(reporter.clone().run());
        Ok(Self {
            engine,
            registry,
            address,
            metrics,
            console,
            shutdown,
            shutdown_delay,
            server: handle,
            tracer,
            reporter,
            reporting,
        })
    }

    /// Reads the registry files again and uses them from now on. If any has an error, the current registry stays in use.
    pub fn reload(&self, files: &RegistryFiles, variables: &Variables) {
        match self.registry.reload(files, variables) {
            Ok(summary) => {
                let registry = self.registry.get();
                self.metrics.name_targets(registry.targets());
                self.console.warn_about_sign_in(&registry);
                log::info!("registry_reloaded file={:?} {summary}", files.targets);
            }
            Err(error) => log::error!(
                "registry_kept why=\"the new files have errors, so the old registry stays in use\" error={:?}",
                error.to_string()
            ),
        }
    }

    /// Stops the instance gracefully. First readiness fails, running attempts finish and the lease is released. Requests
    /// are served meanwhile, and at least for the shutdown delay, so that proxies notice in time. Then the server finishes
    /// the requests that are open and stops.
    pub async fn stop(&self) {
        self.shutdown.announce();
        tokio::join!(self.engine.stop_leading(), tokio::time::sleep(self.shutdown_delay));
        self.reporting.abort();
        self.reporter.forget().await;
        self.engine.watchers.close();
        self.engine.events.close();
        self.server.stop(true).await;
        self.tracer.flush().await;
    }
}

/// How many file descriptors the service needs, and for what.
pub fn descriptor_demand(config: &Config) -> Result<Demand, ConfigError> {
    Ok(Demand {
        connections: config.max_connections,
        per_address: config.max_connections_per_address,
        calls: config.max_in_flight.saturating_add(WEBHOOKS_IN_FLIGHT).saturating_add(console::MAX_SIGN_IN_CALLS),
        store: config.store.files()?,
    })
}

/// The TLS configuration of the server, or `None` to serve plain http.
pub fn https_of(config: &Config) -> Result<Option<rustls::ServerConfig>, StartError> {
    let files = config.tls_files()?;
    Ok(files.map(|(certificate, key)| tls::server_config(certificate, key)).transpose()?)
}

/// Runs the service until a signal stops it. SIGHUP reloads the registry files.
pub async fn serve(config: &Config) -> Result<(), StartError> {
    let variables = Variables::of_process();
    let files = config.registry.files();
    let registry = Registry::load(&files, &variables)?;
    let mut signals = Signals::listen()?;
    log::info!("registry_loaded file={:?} {}", files.targets, registry.summary());
    let service = Service::start(config, registry, variables.clone()).await?;
    let registry = service.registry.get();
    if service.console.is_open(&registry) && registry.identities.is_some() {
        let next = "set SM_CONSOLE_USERS: the API needs tokens, but anyone on this machine can open the console";
        log::warn!("console_open address={} next={next:?}", service.address);
    }
    while let SignalRequest::Reload = signals.next().await {
        service.reload(&files, &variables);
    }
    stop_in_order(&service, signals).await;
    Ok(())
}

/// Stops the instance. A second signal ends the wait for open attempts and requests.
pub async fn stop_in_order(service: &Service, mut signals: Signals) {
    log::info!("stopping next=\"finish open attempts and requests\"");
    let second_signal = async { while let SignalRequest::Reload = signals.next().await {} };
    tokio::select! {
        () = service.stop() => log::info!("stopped"),
        () = second_signal => {
            log::warn!("stopped why=\"second signal\" next=\"the next leader closes the attempts that are still open\"");
        }
    }
}

/// What a signal requests.
pub enum SignalRequest {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// The signals that the service handles.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Installs the signal handlers.
    pub fn listen() -> Result<Self, StartError> {
        let on = |kind| signal(kind).map_err(StartError::Signals);
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }
}

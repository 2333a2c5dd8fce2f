//! The service as a whole: settings in, a running instance out, and an orderly end.
//!
//! Composition only: opens the store, starts the engine and the HTTP server over it, listens to
//! signals. What they do is theirs.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::web::ServiceConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api;
use crate::config::registry::{CurrentRegistry, Registry, RegistryError, RegistryFiles};
use crate::config::settings::{AuthMode, Config, ConfigError, Switch};
use crate::config::variables::Variables;
use crate::console::{self, Access, Console};
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
use crate::web::origin::Listener;
use crate::web::tls::{self, TlsError};
use crate::web::{self, Leaving, WebDeps};

/// Why the service does not start: one line each, with what to do.
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
    #[error("cannot listen on {address}: {source}; stop what uses it or name another with --listen or SM_LISTEN")]
    Listen { address: String, source: std::io::Error },
    #[error(transparent)]
    Descriptors(#[from] TooFewFiles),
    #[error("cannot listen to signals: {0}")]
    Signals(std::io::Error),
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A running instance.
pub struct Service {
    pub engine: Engine,
    pub registry: CurrentRegistry,
    pub address: SocketAddr,
    leaving: Leaving,
    shutdown_delay: Duration,
    server: ServerHandle,
    tracer: Tracer,
}

impl Service {
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
        let gateway: GatewayFactory = {
            let tls = Arc::clone(&tls);
            let metrics = Arc::clone(&metrics);
            Arc::new(move || -> Rc<dyn Gateway> {
                Rc::new(HttpGateway::new(attempts, Arc::clone(&tls)).reporting(&metrics))
            })
        };
        let sender: WebhookSenderFactory = {
            let tls = Arc::clone(&tls);
            let metrics = Arc::clone(&metrics);
            Arc::new(move || -> Rc<dyn WebhookSender> {
                Rc::new(HttpWebhookSender::new(webhooks, Arc::clone(&tls)).reporting(&metrics))
            })
        };
        let tracer = config.otlp_endpoint.clone().map(|endpoint| {
            let collector = Collector { endpoint, instance: settings.holder_id.to_string(), tls: Arc::clone(&tls) };
            Tracer::start(collector, Arc::clone(&metrics))
        });
        let tracer = tracer.unwrap_or_default();
        let registry = CurrentRegistry::new(registry);
        let outside = EngineDeps {
            gateway,
            attempt_timeout: config.attempt_timeout,
            sender,
            variables: variables.clone(),
            registry: registry.clone(),
            tracer: tracer.clone(),
        };
        let engine = Engine::start(store, settings, outside, Arc::clone(&metrics), Threads::own());
        let leaving = Leaving::default();
        let deps = WebDeps {
            store: engine.store.clone(),
            registry: registry.clone(),
            watchers: engine.watchers.clone(),
            metrics,
            board: engine.board.clone(),
            leaving: leaving.clone(),
            max_payload_bytes: config.max_payload_bytes,
            auth,
            listener: Listener::new(address.ip()),
            variables,
            clock: WallClock::system(),
            tracer: tracer.clone(),
        };
        let console = Console::new(&config.console, address.ip())?;
        let routes = move |routes: &mut ServiceConfig| {
            routes.configure(|routes| console::routes(routes, console.clone())).configure(api::routes);
        };
        let server = web::start(deps, routes, listener, https, limits).map_err(cannot_listen)?;
        let handle = server.handle();
        actix::spawn(server);
        let version = env!("CARGO_PKG_VERSION");
        if auth == AuthMode::Off && !address.ip().is_loopback() {
            log::warn!(
                "open_to_all address={address} next=\"set SM_AUTH=required and SM_API_CLIENTS, or keep others away\""
            );
        }
        log::info!("listening address={address} holder_id={} version={version}", engine.board.holder_id);
        let shutdown_delay = config.shutdown_delay;
        Ok(Self { engine, registry, address, leaving, shutdown_delay, server: handle, tracer })
    }

    /// Attempts under way are recorded and the lease given back; meanwhile requests are still
    /// served, so that proxies have time to see that it leaves; then those under way are answered.
    pub async fn stop(&self) {
        self.leaving.announce();
        tokio::join!(self.engine.stop_leading(), tokio::time::sleep(self.shutdown_delay));
        self.engine.watchers.close();
        self.server.stop(true).await;
        self.tracer.flush().await;
    }
}

/// What the service needs file descriptors for.
pub fn descriptor_demand(config: &Config) -> Result<Demand, ConfigError> {
    Ok(Demand {
        connections: config.max_connections,
        per_address: config.max_connections_per_address,
        calls: config.max_in_flight.saturating_add(WEBHOOKS_IN_FLIGHT),
        store: config.store.files()?,
    })
}

/// What is needed to serve https, if that is asked for.
pub fn https_of(config: &Config) -> Result<Option<rustls::ServerConfig>, StartError> {
    let files = config.tls_files()?;
    Ok(files.map(|(certificate, key)| tls::server_config(certificate, key)).transpose()?)
}

/// Runs the service until it is told to stop.
pub async fn serve(config: &Config) -> Result<(), StartError> {
    let variables = Variables::of_process();
    let files = config.registry.files();
    let registry = Registry::load(&files, &variables)?;
    let mut signals = Signals::listen()?;
    log::info!("registry_loaded file={:?} {}", files.targets, registry.summary());
    let service = Service::start(config, registry, variables.clone()).await?;
    let console = Console::new(&config.console, service.address.ip())?;
    if matches!(console.access, Access::Open) && service.registry.get().identities.is_some() {
        let next = "set SM_CONSOLE_AUTH: callers have tokens, but anyone on this machine can read the console";
        log::warn!("console_open address={} next={next:?}", service.address);
    }
    while let Asked::Reload = signals.next().await {
        reload(&service.registry, &files, &variables);
    }
    stop_in_order(&service, signals).await;
    Ok(())
}

/// Stops; a second signal ends the wait for what is under way.
pub async fn stop_in_order(service: &Service, mut signals: Signals) {
    log::info!("stopping next=\"finish attempts and requests under way\"");
    let impatient = async { while let Asked::Reload = signals.next().await {} };
    tokio::select! {
        () = service.stop() => log::info!("stopped"),
        () = impatient => log::warn!("stopped why=\"second signal\" next=\"open attempts are closed by the next leader\""),
    }
}

fn reload(registry: &CurrentRegistry, files: &RegistryFiles, variables: &Variables) {
    match registry.reload(files, variables) {
        Ok(summary) => log::info!("registry_reloaded file={:?} {summary}", files.targets),
        Err(error) => log::error!("registry_kept why=\"the new files were not taken\" error={:?}", error.to_string()),
    }
}

pub enum Asked {
    Stop,
    Reload,
}

/// The signals that mean something here.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub fn listen() -> Result<Self, StartError> {
        let on = |kind| signal(kind).map_err(StartError::Signals);
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}

//! Several instances on one store, behind a real HAProxy with the configuration that is shipped.

mod chaos;
pub(crate) mod evidence;
mod haproxy;
mod operators;
mod plan;
mod readers;
mod rolling;

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use submission_manager::devtools::stand_in_gateway::StandIn;
use tokio::time::Instant;

use self::evidence::{Evidence, Record};
use self::haproxy::HaProxy;
use crate::support::{Api, Instance, PATIENCE, Site};

pub(crate) const SEATS: usize = 3;

/// A place for an instance: its address stays, and instances are replaced.
pub(crate) struct Seat {
    address: SocketAddr,
    instance: RefCell<Option<Instance>>,
    /// Log lines of instances that have ended.
    past: RefCell<Vec<String>>,
    /// Whether a fault is being injected into the instance.
    taken: Cell<bool>,
}

impl Seat {
    pub(crate) fn api(&self) -> Api {
        Api::new(&format!("http://{}", self.address))
    }

    pub(crate) fn signal(&self, name: &str) {
        if let Some(instance) = &*self.instance.borrow() {
            instance.signal(name);
        }
    }

    /// Kills the instance, if there is one.
    pub(crate) fn kill(&self) {
        if let Some(mut instance) = self.instance.take() {
            instance.kill();
            self.past.borrow_mut().extend(instance.log_lines());
        }
    }

    /// Whether there is an instance, and it listens.
    pub(crate) fn is_up(&self) -> bool {
        self.instance.borrow().as_ref().is_some_and(|it| it.log_lines().iter().any(|line| line.contains("listening")))
    }

    /// Removes an instance that has ended. Returns whether the seat is empty now.
    pub(crate) fn clear(&self) -> bool {
        let ended = self.instance.borrow_mut().as_mut().is_none_or(|instance| instance.ended().is_some());
        if ended {
            self.kill();
        }
        ended
    }

    /// Waits until the instance has ended by itself, and returns its exit code.
    pub(crate) async fn ended(&self) -> Option<i32> {
        let mut instance = self.instance.take()?;
        let mut pace = tokio::time::interval(Duration::from_millis(10));
        let ending = async {
            loop {
                pace.tick().await;
                if let Some(status) = instance.ended() {
                    return status;
                }
            }
        };
        let status = tokio::time::timeout(PATIENCE, ending).await.expect("it ends");
        self.past.borrow_mut().extend(instance.log_lines());
        status.code()
    }

    pub(crate) fn logged_after(&self, since: Instant, text: &str) -> Option<Instant> {
        self.instance.borrow().as_ref()?.logged_after(since, text)
    }
}

/// Adds to the environment of the instance on a seat.
type Settings = dyn Fn(usize, &mut Command);

pub(crate) struct Fleet {
    // Dropped in this order, so that instances end before their store and gateways.
    pub seats: Vec<Seat>,
    pub proxy: HaProxy,
    pub gateways: RefCell<Vec<StandIn>>,
    pub site: Site,
    settings: Box<Settings>,
}

impl Fleet {
    /// Starts a fleet with an instance on every seat. `settings` adds to the environment of each.
    pub(crate) fn start(site: Site, gateways: Vec<StandIn>, settings: impl Fn(usize, &mut Command) + 'static) -> Self {
        let addresses: Vec<_> = (0..SEATS).map(|_| free_address()).collect();
        let proxy = HaProxy::start(&addresses);
        let seat =
            |address| Seat { address, instance: RefCell::default(), past: RefCell::default(), taken: Cell::default() };
        let seats = addresses.into_iter().map(seat).collect();
        let fleet = Self { seats, proxy, gateways: RefCell::new(gateways), site, settings: Box::new(settings) };
        (0..SEATS).for_each(|seat| fleet.sit(seat));
        fleet
    }

    /// Starts an instance on an empty seat.
    pub(crate) fn sit(&self, seat: usize) {
        let mut command = self.site.command();
        let holder = format!("seat-{seat}-{}", self.seats[seat].past.borrow().len());
        command.env("SM_LISTEN", self.seats[seat].address.to_string()).env("SM_HOLDER_ID", holder);
        (self.settings)(seat, &mut command);
        let old = self.seats[seat].instance.replace(Some(Instance::spawn(command)));
        assert!(old.is_none(), "seat {seat} was taken");
    }

    /// Waits until an instance leads, and returns its seat.
    pub(crate) async fn some_leader(&self) -> usize {
        let looking = async {
            loop {
                if let Some(leader) = self.leader().await {
                    return leader;
                }
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("somebody leads")
    }

    /// Returns the seat of the instance that reports that it leads.
    pub(crate) async fn leader(&self) -> Option<usize> {
        for (number, seat) in self.seats.iter().enumerate() {
            let api = Api::with_patience(&format!("http://{}", seat.address), Duration::from_millis(500));
            if let Ok(answer) = api.try_get("/readyz").await
                && answer.text().starts_with("mode=leader")
            {
                return Some(number);
            }
        }
        None
    }

    pub(crate) async fn evidence(&self, record: &Record) -> Evidence {
        let witnesses: Vec<_> = self.gateways.borrow().iter().map(StandIn::witness).collect();
        Evidence::collect(&self.site, &witnesses, record, &self.log_lines()).await
    }

    /// Returns all log lines, also those of instances that have ended.
    pub(crate) fn log_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for seat in &self.seats {
            lines.extend(seat.past.borrow().iter().cloned());
            if let Some(instance) = &*seat.instance.borrow() {
                lines.extend(instance.log_lines());
            }
        }
        lines
    }
}

/// Returns an address for a process that is started more than once. Its port is outside of the kernel's range of ephemeral
/// ports, so that no other process gets it meanwhile.
pub(crate) fn free_address() -> SocketAddr {
    for _ in 0..1000 {
        let address = SocketAddr::from(([127, 0, 0, 1], fastrand::u16(10_000..30_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port");
}

//! The real HAProxy with `deploy/haproxy.cfg`.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::free_address;
use crate::support::Api;

pub(crate) struct HaProxy {
    child: Child,
    pub url: String,
    stats: Api,
}

impl HaProxy {
    pub(crate) fn start(instances: &[SocketAddr]) -> Self {
        let (front, stats) = (free_address(), free_address());
        let mut command = Command::new("haproxy");
        // Debian installs it in /usr/sbin, which is often not in the PATH.
        command.env("PATH", format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default()));
        command.args(["-db", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/haproxy.cfg")]);
        command.env("SM_FRONT", front.to_string()).env("SM_STATS", stats.to_string());
        for (number, address) in instances.iter().enumerate() {
            command.env(format!("SM_{}", number + 1), address.to_string());
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run haproxy ({error}): install the package haproxy"));
        Self { child, url: format!("http://{front}"), stats: Api::new(&format!("http://{stats}")) }
    }

    /// Waits until `count` instances get requests.
    pub(crate) async fn until_up(&self, count: usize) {
        let up =
            |csv: String| csv.lines().filter(|line| line.starts_with("instances,sm-") && line.contains(",UP,")).count();
        self.stats.until("/;csv", |answer| up(answer.text()) == count).await;
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_waited_for = self.child.wait();
    }
}

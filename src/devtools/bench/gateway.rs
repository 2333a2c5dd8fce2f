//! A gateway that responds after a given time and records when the first attempt of each intent arrived.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use tokio::time::Instant;

use super::error::{BenchResult, Step};
use crate::platform::clock::monotonic;

/// The path on which it also accepts webhooks.
pub(super) const RECEIVER_PATH: &str = "/webhook";

/// A running gateway.
pub(super) struct BenchGateway {
    pub url: String,
    pub arrivals: FirstArrivals,
    /// The number of responses and their total duration, which is longer than configured because of timers and load.
    served: Arc<Mutex<(u32, Duration)>>,
    handle: ServerHandle,
}

/// When the first attempt of each intent arrived, by the number of the intent.
#[derive(Clone, Default)]
pub(super) struct FirstArrivals(Arc<Mutex<Vec<Option<Instant>>>>);

impl FirstArrivals {
    fn record(&self, number: usize) {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if moments.len() <= number {
            moments.resize((number + 1).next_power_of_two(), None);
        }
        moments[number].get_or_insert_with(monotonic);
    }

    pub(super) fn of(&self, number: usize) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(number).copied().flatten()
    }
}

impl BenchGateway {
    /// Starts a gateway. The first attempt of `retried` percent of the intents fails.
    pub(super) fn start(latency: Duration, retried: u32) -> BenchResult<Self> {
        let arrivals = FirstArrivals::default();
        let (noted, served) = (arrivals.clone(), Arc::<Mutex<(u32, Duration)>>::default());
        let spans = Arc::clone(&served);
        let server = HttpServer::new(move || {
            let (noted, spans) = (noted.clone(), Arc::clone(&spans));
            let answer = move |request: HttpRequest, _: web::Bytes| {
                let (noted, spans) = (noted.clone(), Arc::clone(&spans));
                async move {
                    if request.path() == RECEIVER_PATH {
                        return HttpResponse::NoContent().finish();
                    }
                    let began = monotonic();
                    let response = answer(&request, &noted, latency, retried).await;
                    let mut served = spans.lock().unwrap_or_else(PoisonError::into_inner);
                    *served = (served.0 + 1, served.1 + monotonic().duration_since(began));
                    response
                }
            };
            App::new().app_data(web::PayloadConfig::new(64 * 1024 * 1024)).default_service(web::to(answer))
        })
        .workers(1)
        .disable_signals()
        .shutdown_timeout(0)
        .bind("127.0.0.1:0")
        .step(|| "cannot start a gateway")?;
        let url = format!("http://{}", server.addrs()[0]);
        let server = server.run();
        let handle = server.handle();
        actix::spawn(server);
        Ok(Self { url, arrivals, served, handle })
    }

    /// The average duration of a response.
    pub(super) fn mean_latency(&self) -> Duration {
        let (count, total) = *self.served.lock().unwrap_or_else(PoisonError::into_inner);
        total.checked_div(count).unwrap_or_default()
    }

    pub(super) async fn stop(&self) {
        self.handle.stop(false).await;
    }
}

async fn answer(request: &HttpRequest, arrivals: &FirstArrivals, latency: Duration, retried: u32) -> HttpResponse {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let number = header("Idempotency-Key").rsplit('-').next().and_then(|digits| digits.parse::<usize>().ok());
    let first = header("X-Submission-Attempt") == "1";
    if let Some(number) = number.filter(|_| first) {
        arrivals.record(number);
    }
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    if first && number.is_some_and(|number| number % 100 < retried as usize) {
        return HttpResponse::InternalServerError().finish();
    }
    // Message ids are random, like those of most gateways.
    let id = format!(r#"{{"status":"accepted","gatewayMessageId":"{:016x}"}}"#, fastrand::u64(..));
    HttpResponse::Ok().content_type("application/json").body(id)
}

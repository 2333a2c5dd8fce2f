//! A gateway that answers after a given time and notes when each intent first reached it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use tokio::time::Instant;

use crate::platform::clock::monotonic;

/// Where it takes webhooks, too.
pub const RECEIVER_PATH: &str = "/webhook";

pub struct BenchGateway {
    pub url: String,
    pub arrivals: TermSubscription,
    /// How long it took in truth: timers and a busy machine add to what was asked for.
    served: Arc<Mutex<(u32, Duration)>>,
    handle: ServerHandle,
}

/// When the first attempt of each intent came, by its number.
#[derive(Clone, Default)]
pub struct TermSubscription(Arc<Mutex<Vec<Option<Instant>>>>);

impl TermSubscription {
    fn note(&self, number: usize) {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if moments.len() <= number {
            moments.resize((number + 1).next_power_of_two(), None);
        }
        moments[number].get_or_insert_with(monotonic);
    }

    pub fn of(&self, number: usize) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(number).copied().flatten()
    }
}

impl BenchGateway {
    /// `retried`: so many percent of the intents fail at their first attempt.
    pub fn start(latency: Duration, retried: u32) -> Result<Self, String> {
        let arrivals = TermSubscription::default();
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
        .map_err(|error| format!("cannot start a gateway: {error}"))?;
        let url = format!("http://{}", server.addrs()[0]);
        let server = server.run();
        let handle = server.handle();
        actix::spawn(server);
        Ok(Self { url, arrivals, served, handle })
    }

    /// How long an answer took on average.
    pub fn mean_latency(&self) -> Duration {
        let (count, total) = *self.served.lock().unwrap_or_else(PoisonError::into_inner);
        total.checked_div(count).unwrap_or_default()
    }

    pub async fn stop(&self) {
        self.handle.stop(false).await;
    }
}

async fn answer(request: &HttpRequest, arrivals: &TermSubscription, latency: Duration, retried: u32) -> HttpResponse {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let number = header("Idempotency-Key").rsplit('-').next().and_then(|digits| digits.parse::<usize>().ok());
    let first = header("X-Submission-Attempt") == "1";
    if let Some(number) = number.filter(|_| first) {
        arrivals.note(number);
    }
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    if first && number.is_some_and(|number| number % 100 < retried as usize) {
        return HttpResponse::InternalServerError().finish();
    }
    // As most gateways do: another id each time, in no order.
    let id = format!(r#"{{"status":"accepted","gatewayMessageId":"{:016x}"}}"#, fastrand::u64(..));
    HttpResponse::Ok().content_type("application/json").body(id)
}

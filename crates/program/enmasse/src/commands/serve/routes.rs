//! Requests and their answers, which are JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use enmasse_train::Prediction;
use enmasse_wording::one_line;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use super::metrics::Metrics;
use super::queue::{Answer, Job};
use crate::web::{FormFile, Refusal, drain, files, read_body, refusal};

/// Bytes of all bodies together, at most, unless a single one may have more.
const MAX_BODIES: usize = 512 << 20;

/// Bodies are counted in pieces of this size.
const PIECE: usize = 1 << 10;

/// The kind of bodies that have an image or several of them, each with a head.
const FORM: &str = "multipart/form-data";

/// Makes pixels of an image's bytes and its name. An error says what is wrong with the image.
pub type Prepare = Arc<dyn Fn(&[u8], &str) -> Result<Vec<u8>, String> + Send + Sync>;

/// A model as clients see it.
pub struct Served {
    pub name: String,
    pub prepare: Prepare,
    /// What `GET /models` says of it.
    pub about: Value,
}

/// What a server takes.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Images that are being prepared, wait or are computed.
    pub queue: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// From a request's head to its answer.
    pub time: Duration,
}

/// What requests share.
pub struct Server {
    models: Vec<Served>,
    jobs: Sender<Job>,
    pub metrics: Arc<Metrics>,
    limits: Limits,
    places: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    is_draining: AtomicBool,
}

impl Server {
    pub fn new(models: Vec<Served>, jobs: Sender<Job>, metrics: Arc<Metrics>, limits: Limits) -> Arc<Self> {
        let bodies = Arc::new(Semaphore::new(MAX_BODIES.max(limits.body).div_ceil(PIECE)));
        let places = Arc::new(Semaphore::new(limits.queue));
        Arc::new(Server { models, jobs, metrics, limits, places, bodies, is_draining: AtomicBool::new(false) })
    }

    /// Takes no more requests, and returns once those that it has are answered.
    pub async fn drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
        // It fails only for a queue that is closed, and this one never is.
        if let Ok(all) = self.places.acquire_many(self.limits.queue as u32).await {
            all.forget();
        }
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// The routes.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/predict", post(predict_by_default))
            .route("/models/{name}/predict", post(predict_by_name))
            .route("/models", get(models))
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .fallback(async || refused(refusal(StatusCode::NOT_FOUND, "there is no such address")))
            .method_not_allowed_fallback(async || {
                refused(refusal(StatusCode::METHOD_NOT_ALLOWED, "this address takes no such request"))
            })
            .with_state(self.clone())
    }

    /// Refuses a request by its head.
    fn check(&self, head: &Parts) -> Result<(), Refusal> {
        let value = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
        let own = value(HOST).unwrap_or_default();
        let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, host)| host.eq_ignore_ascii_case(own));
        if head.headers.contains_key(ORIGIN) && !value(ORIGIN).is_some_and(is_own) {
            return Err(refusal(StatusCode::FORBIDDEN, "the request comes from a page of another site"));
        }
        match self.is_draining() {
            true => Err(refusal(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")),
            false => Ok(()),
        }
    }

    /// Room for a body of up to so many bytes.
    fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let pieces = bytes.min(self.limits.body).div_ceil(PIECE) as u32;
        self.bodies.clone().try_acquire_many_owned(pieces).map_err(|_| self.full())
    }

    /// Places in the queue.
    fn places(&self, images: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        if images > self.limits.queue {
            let line = format!("the request has {images} images, and the queue has {} places", self.limits.queue);
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, line));
        }
        self.places.clone().try_acquire_many_owned(images as u32).map_err(|_| self.full())
    }

    fn full(&self) -> Refusal {
        match self.is_draining() {
            true => refusal(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping"),
            false => refusal(StatusCode::TOO_MANY_REQUESTS, "the queue is full"),
        }
    }

    /// Has an image prepared and computed.
    fn submit(
        self: &Arc<Self>,
        model: usize,
        name: String,
        file: Bytes,
        (place, room): (OwnedSemaphorePermit, Arc<OwnedSemaphorePermit>),
    ) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        let mut job = Job { place, model, image: (name, Vec::new()), answer };
        let server = self.clone();
        spawn_blocking(move || {
            // The body is in memory until here, even if its client has gone.
            let (file, _room) = (file, room);
            // Nobody waits any more if its time is over.
            if job.answer.is_closed() {
                return;
            }
            match (server.models[model].prepare)(&file, &job.image.0) {
                Ok(pixels) => {
                    job.image.1 = pixels;
                    // The thread of the device ends after this one.
                    let _ = server.jobs.send(job);
                }
                Err(line) => {
                    drop(job.place);
                    let _ = job.answer.send(Err(refusal(StatusCode::UNPROCESSABLE_ENTITY, line)));
                }
            }
        });
        answered
    }

    /// The predictions of the images in a request, and whether they came as a form.
    async fn predict(self: &Arc<Self>, model: usize, request: Request) -> Result<(Vec<Prediction>, bool), Refusal> {
        let deadline = tokio::time::Instant::now() + self.limits.time;
        let (head, body) = request.into_parts();
        let length =
            body.size_hint().upper().map_or(self.limits.body, |length| length.try_into().unwrap_or(usize::MAX));
        let room = match self.check(&head).and_then(|()| self.room(length)) {
            Ok(room) => Arc::new(room),
            Err(refusal) => {
                drain(body);
                return Err(refusal);
            }
        };
        let body = read_body(body, self.limits.body, self.limits.time).await?;
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let files: Vec<FormFile> = files(kind, &body);
        if files.iter().all(|file| file.content.is_empty()) {
            return Err(refusal(
                StatusCode::BAD_REQUEST,
                "no image was sent: the body is an image, or a form of images",
            ));
        }
        let mut places = self.places(files.len())?;
        let mut answers = Vec::new();
        for (number, FormFile { name, content }) in files.into_iter().enumerate() {
            let place = places.split(1).ok_or_else(|| self.full())?;
            let name = name.unwrap_or_else(|| format!("image {number}"));
            answers.push(self.submit(model, name, body.slice_ref(content), (place, room.clone())));
        }
        let all = async {
            let mut predictions = Vec::new();
            for answer in answers {
                let lost = |_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "the image could not be computed");
                predictions.push(answer.await.map_err(lost)??);
            }
            Ok(predictions)
        };
        let late = || refusal(StatusCode::GATEWAY_TIMEOUT, "the image was not computed in time");
        let predictions = timeout_at(deadline, all).await.unwrap_or_else(|_| Err(late()))?;
        Ok((predictions, kind.starts_with(FORM)))
    }

    async fn answer(self: &Arc<Self>, model: usize, request: Request) -> Response {
        let begun = Instant::now();
        let response = match self.predict(model, request).await {
            Ok((predictions, true)) => answered(StatusCode::OK, &json!(predictions)),
            Ok((predictions, false)) => answered(StatusCode::OK, &json!(predictions.first())),
            Err(refusal) => refused(refusal),
        };
        self.metrics.request(model, response.status(), begun.elapsed());
        response
    }
}

async fn predict_by_default(State(server): State<Arc<Server>>, request: Request) -> Response {
    server.answer(0, request).await
}

async fn predict_by_name(
    State(server): State<Arc<Server>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let is_named = |served: &Served| name.as_ref().is_ok_and(|name| served.name == name.0);
    match server.models.iter().position(is_named) {
        Some(model) => server.answer(model, request).await,
        None => {
            drain(request.into_body());
            refused(refusal(StatusCode::NOT_FOUND, "there is no such model: GET /models lists them"))
        }
    }
}

async fn models(State(server): State<Arc<Server>>) -> Response {
    let models: Vec<&Value> = server.models.iter().map(|served| &served.about).collect();
    answered(StatusCode::OK, &json!(models))
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    match server.is_draining() {
        false => answered(StatusCode::OK, &json!({ "status": "ready" })),
        true => answered(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" })),
    }
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let queued = server.limits.queue - server.places.available_permits();
    let text = server.metrics.text(queued, !server.is_draining());
    (headers("text/plain; version=0.0.4; charset=utf-8"), text).into_response()
}

/// JSON as an answer.
fn answered(status: StatusCode, value: &Value) -> Response {
    (status, headers("application/json"), format!("{value}\n")).into_response()
}

fn refused((status, line): Refusal) -> Response {
    let retry = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status);
    let retry = retry.then_some([(RETRY_AFTER, "1")]);
    (retry, answered(status, &error(&line))).into_response()
}

/// What is wrong, as JSON.
pub fn error(line: &str) -> Value {
    json!({ "error": one_line(line) })
}

fn headers(kind: &'static str) -> HeaderMap {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}

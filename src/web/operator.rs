//! The person who uses the console.

use std::future::{Ready, ready};
use std::sync::Arc;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage, HttpRequest};

use super::error::ApiError;
use crate::domain::role::Role;

/// Who sent a request to the console. The console's guard adds it to the request once it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// `None` if the console needs no login, so that it is not known who it is.
    pub name: Option<Arc<str>>,
    pub role: Role,
}

impl Operator {
    /// A user of a console that needs no login, because only this machine can reach it.
    pub const ON_LOOPBACK: Self = Self { name: None, role: Role::Admin };
}

impl FromRequest for Operator {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(request.extensions().get::<Self>().cloned().ok_or(ApiError::Unauthorized))
    }
}

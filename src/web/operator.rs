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
    pub known_by: KnownBy,
}

/// How the console knows who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// It does not: the console needs no login.
    Loopback,
    /// The request has a user name and a password.
    Password,
    /// The session of a user who signed in with a password.
    Session,
    /// The session of a person who signed in with the OpenID Connect provider, which knows the person as this subject.
    Provider { subject: Arc<str> },
}

impl KnownBy {
    /// Whether there is a session that the person can end.
    pub const fn is_session(&self) -> bool {
        matches!(self, Self::Session | Self::Provider { .. })
    }
}

impl Operator {
    /// A user of a console that needs no login, because only this machine can reach it.
    pub const ON_LOOPBACK: Self = Self { name: None, role: Role::Admin, known_by: KnownBy::Loopback };
}

impl FromRequest for Operator {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(request.extensions().get::<Self>().cloned().ok_or(ApiError::Unauthorized))
    }
}

//! Who sent a request, for the calls of the store that act on behalf of an operator, and for the audit log. This is the only
//! place of the HTTP server that creates an [`Actor`].

use std::future::{Ready, ready};
use std::net::IpAddr;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};

use super::error::ApiError;
use super::operator::Operator;
use super::{WebDeps, auth};
use crate::config::settings::AuthMode;
use crate::domain::actor::Actor;

impl FromRequest for Actor {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(actor_of(request))
    }
}

/// A person who uses the console from this address.
pub fn person(operator: &Operator, address: Option<IpAddr>) -> Actor {
    let name = operator.name.as_deref();
    name.map_or_else(|| Actor::not_signed_in(address), |name| Actor::console(name, address))
}

/// Somebody whose sign-in to the console is refused, with the name of the user if there is such a user.
pub fn refused_person(user: Option<&str>, address: Option<IpAddr>) -> Actor {
    Actor::refused(user, address)
}

/// The address of the connection, not of a proxy header: a client could forge the header.
fn address_of(request: &HttpRequest) -> Option<IpAddr> {
    request.peer_addr().map(|peer| peer.ip())
}

/// The person whom the guard of the console has established; in the API the client whose token the request carries.
pub fn actor_of(request: &HttpRequest) -> Result<Actor, ApiError> {
    let address = address_of(request);
    if let Some(operator) = request.extensions().get::<Operator>() {
        return Ok(person(operator, address));
    }
    let deps = request.app_data::<web::Data<WebDeps>>().ok_or(ApiError::Internal)?;
    match (auth::caller(request, &deps.registry.get()), deps.auth) {
        (Ok(client), _) => Ok(Actor::token(&client.id, address)),
        (Err(_), AuthMode::Off) => Ok(Actor::not_signed_in(address)),
        (Err(error), AuthMode::Required) => Err(error),
    }
}

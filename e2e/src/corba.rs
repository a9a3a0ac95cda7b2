//! A client of the load manager, made of Evenkeel's own GIOP: for what a test has to say to
//! it while clients and servers of other ORBs are what is tested.

use std::net::SocketAddr;

use evenkeel_corba::exceptions::UserException;
use evenkeel_corba::interfaces::Interface;
use evenkeel_corba::keys::MANAGER;
use evenkeel_corba::name::Name;
use evenkeel_corba::types::{Load, Properties, Property};
use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::cdr::Writer;
use evenkeel_giop::client::{Body, Call, CallError, Client, Settings};
use evenkeel_giop::ior::Ior;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::HANG;

/// Calls objects, and waits for what comes of it.
pub struct Orb {
    runtime: Runtime,
    client: Client,
}

impl Default for Orb {
    fn default() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        Orb {
            runtime: runtime.expect("a runtime"),
            client: Client::new(Settings::default()),
        }
    }
}

impl Orb {
    /// Calls an operation with the arguments that `write` writes.
    pub fn call_operation(
        &self,
        target: &Ior,
        operation: &str,
        write: impl FnOnce(&mut Writer),
    ) -> Result<Body, CallError> {
        let call = Call::new(target, operation, Instant::now() + HANG).with_arguments(write);
        self.runtime.block_on(self.client.call(&call))
    }

    /// Returns the reference to which a request to `target` is forwarded.
    pub fn resolve_forward(&self, target: &Ior) -> Result<Ior, CallError> {
        let call = Call::new(target, "_non_existent", Instant::now() + HANG).do_not_follow();
        match self.runtime.block_on(self.client.call(&call)) {
            Err(CallError::Forward(to)) => Ok(*to),
            Err(error) => Err(error),
            Ok(_) => panic!("the object itself has answered"),
        }
    }
}

/// The load manager from outside.
pub struct LoadManager {
    /// ORB by which the load manager is called.
    pub orb: Orb,
    /// Reference of the load manager.
    pub reference: Ior,
}

/// An exception of the load manager's interfaces; anything else is a failure of the test.
fn raised(error: CallError) -> UserException {
    match error {
        CallError::User { body, .. } => UserException::read(&mut body.reader())
            .expect("a whole exception")
            .expect("an exception of the interface"),
        other => panic!("{other}"),
    }
}

fn result<T: Idl>(body: Body) -> T {
    T::read(&mut body.reader()).expect("a result")
}

impl LoadManager {
    /// The one at this address.
    pub fn at_address(address: SocketAddr) -> Self {
        let type_id = Interface::LoadManager.id("tao.lb");
        let host = address.ip().to_string();
        LoadManager {
            orb: Orb::default(),
            reference: Ior::new_iiop(&type_id, &host, address.port(), MANAGER),
        }
    }

    /// Calls one of its operations.
    pub fn call_operation(
        &self,
        operation: &str,
        write: impl FnOnce(&mut Writer),
    ) -> Result<Body, UserException> {
        let called = self.orb.call_operation(&self.reference, operation, write);
        called.map_err(raised)
    }

    /// Creates a group with application-controlled membership, and these further criteria.
    pub fn create_group(
        &self,
        type_id: &str,
        mut criteria: Properties,
    ) -> Result<(Ior, Any), UserException> {
        criteria.push(Property::new(
            "org.omg.PortableGroup.MembershipStyle",
            &0i32,
        ));
        self.create_object(type_id, &criteria)
    }

    /// `create_object` as it is.
    pub fn create_object(
        &self,
        type_id: &str,
        criteria: &Properties,
    ) -> Result<(Ior, Any), UserException> {
        let body = self.call_operation("create_object", |w| {
            type_id.to_owned().write(w);
            criteria.write(w);
        })?;
        let mut reader = body.reader();
        let group = Ior::read(&mut reader).expect("a group");
        Ok((group, Any::read(&mut reader).expect("a creation id")))
    }

    /// Adds a member at the location whose only component is `at`.
    pub fn add_member(&self, group: &Ior, at: &str, member: &Ior) -> Result<Ior, UserException> {
        let body = self.call_operation("add_member", |w| {
            group.write(w);
            Name::from_id(at).write(w);
            member.write(w);
        })?;
        Ok(result(body))
    }

    /// Removes the member there.
    pub fn remove_member(&self, group: &Ior, at: &str) -> Result<Ior, UserException> {
        let body = self.call_operation("remove_member", |w| {
            group.write(w);
            Name::from_id(at).write(w);
        })?;
        Ok(result(body))
    }

    /// The locations of the members, as text.
    pub fn locations(&self, group: &Ior) -> Result<Vec<String>, UserException> {
        let names: Vec<Name> =
            result(self.call_operation("locations_of_members", |w| group.write(w))?);
        Ok(names.iter().map(ToString::to_string).collect())
    }

    /// Says what the load of a location is.
    pub fn push_loads(&self, at: &str, loads: &[Load]) -> Result<(), UserException> {
        let pushed = self.call_operation("push_loads", |w| {
            Name::from_id(at).write(w);
            loads.to_vec().write(w);
        });
        pushed.map(|_| ())
    }

    /// Changes properties of a group.
    pub fn set_properties(
        &self,
        group: &Ior,
        properties: &Properties,
    ) -> Result<(), UserException> {
        let set = self.call_operation("set_properties_dynamically", |w| {
            group.write(w);
            properties.write(w);
        });
        set.map(|_| ())
    }
}

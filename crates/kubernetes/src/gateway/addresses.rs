//! Addresses of gateways: those of the balancer, which all gateways share, or a single one of a pool for each gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::conditions::Refusal;
use super::objects::{Gateway, ObjectName};
use super::settings::Settings;

/// Addresses of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GatewayAddresses {
    /// Addresses to listen on; none if the pool has no address for the gateway.
    pub(crate) listen: Vec<IpAddr>,
    /// Addresses for the status.
    pub(crate) publish: Vec<String>,
    /// Reason why the gateway has no address.
    pub(crate) refusal: Option<Refusal>,
}

/// Returns the addresses of all gateways, which come in the order of their age. A gateway keeps the address that its
/// status has, so that a younger or an older gateway moves nobody. A gateway that asks for addresses which are not the
/// balancer's has none: no names at the addresses of others, and no address of the pool.
pub(crate) fn assign_addresses(
    all: &[&Gateway],
    settings: &Settings,
) -> BTreeMap<ObjectName, GatewayAddresses> {
    let name = |gateway: &Gateway| gateway.metadata.object_name();
    let (mut gateways, mut left): (Vec<&Gateway>, Vec<(&Gateway, Refusal)>) = Default::default();
    for &gateway in all {
        let unusable = refuse_addresses(gateway).map(|(_, message)| ("AddressNotUsable", message));
        match unusable.or_else(|| find_foreign(gateway, settings)) {
            Some(refusal) => left.push((gateway, refusal)),
            None => gateways.push(gateway),
        }
    }
    if settings.pool.is_empty() {
        let shared = share_addresses(settings);
        let shared = gateways.iter().map(|of| (name(of), shared.clone()));
        return shared.chain(refuse_all(left)).collect();
    }
    let mut free: BTreeSet<IpAddr> = settings.pool.iter().copied().collect();
    let mut found: BTreeMap<ObjectName, GatewayAddresses> = BTreeMap::new();
    let mut give = |gateway: &Gateway, address: IpAddr| {
        let given = GatewayAddresses {
            listen: vec![address],
            publish: vec![address.to_string()],
            refusal: None,
        };
        found.insert(name(gateway), given);
    };
    // Gateways that have an address go first: a gateway that asks for it takes it from nobody.
    let (known, other): (Vec<&Gateway>, Vec<&Gateway>) = gateways.iter().partition(|gateway| {
        let wish = find_wish(gateway);
        let current = find_current(gateway).filter(|current| wish.is_none_or(|ip| ip == *current));
        current.is_some_and(|address| free.remove(&address))
    });
    for gateway in known {
        if let Some(address) = find_current(gateway) {
            give(gateway, address);
        }
    }
    let (asking, new): (Vec<&Gateway>, Vec<&Gateway>) = other
        .into_iter()
        .partition(|gateway| find_wish(gateway).is_some());
    for gateway in asking {
        match find_wish(gateway).filter(|wish| free.remove(wish)) {
            Some(address) => give(gateway, address),
            None => {
                let message = "another gateway has the address; ask for another one";
                left.push((gateway, ("AddressNotUsable", message.into())));
            }
        }
    }
    for gateway in new {
        let next = { settings.pool.iter() }.find(|address| free.contains(address));
        match next.copied() {
            Some(address) => {
                free.remove(&address);
                give(gateway, address);
            }
            None => {
                let message = "each address of the pool is in use; add addresses to pool in [kubernetes.gateway]";
                left.push((gateway, ("AddressNotAssigned", message.into())));
            }
        }
    }
    found.extend(refuse_all(left));
    found
}

/// Returns the addresses of gateways that have none, for these reasons.
fn refuse_all(
    all: Vec<(&Gateway, Refusal)>,
) -> impl Iterator<Item = (ObjectName, GatewayAddresses)> {
    all.into_iter().map(|(gateway, refusal)| {
        let none = GatewayAddresses {
            refusal: Some(refusal),
            ..GatewayAddresses::default()
        };
        (gateway.metadata.object_name(), none)
    })
}

/// Returns the addresses that all gateways share.
fn share_addresses(settings: &Settings) -> GatewayAddresses {
    GatewayAddresses {
        listen: settings.listen.clone(),
        publish: settings.publish.clone(),
        refusal: settings.publish.is_empty().then(|| {
            let message = match settings.publish_service {
                Some(_) => "no address is known: the service of publish_service has none yet",
                None => "no address is known; set publish in [kubernetes.gateway]",
            };
            ("AddressNotAssigned", message.into())
        }),
    }
}

/// Returns the address that a gateway asks for.
fn find_wish(gateway: &Gateway) -> Option<IpAddr> {
    let mut wishes = gateway.spec.addresses.iter();
    wishes.find_map(|address| address.value.parse().ok())
}

/// Returns the address that the status of a gateway has.
fn find_current(gateway: &Gateway) -> Option<IpAddr> {
    let address = gateway.status.pointer("/addresses/0/value")?;
    address.as_str()?.parse().ok()
}

/// Returns the reason why the types of the addresses that a gateway asks for are not supported.
pub(crate) fn refuse_addresses(gateway: &Gateway) -> Option<Refusal> {
    let kinds = gateway.spec.addresses.iter();
    let mut kinds = kinds.filter_map(|address| address.kind.as_deref());
    let unknown = kinds.find(|kind| !matches!(*kind, "IPAddress" | "Hostname"))?;
    let message =
        format!("an address of type {unknown:?} is not supported; use IPAddress or Hostname");
    Some(("UnsupportedAddress", message))
}

/// Returns the reason why an address that a gateway asks for is none of the balancer's.
fn find_foreign(gateway: &Gateway, settings: &Settings) -> Option<Refusal> {
    let is_own = |value: &String| match settings.pool.is_empty() {
        true => settings.publish.contains(value),
        false => { value.parse::<IpAddr>() }.is_ok_and(|address| settings.pool.contains(&address)),
    };
    let mut wishes = gateway.spec.addresses.iter();
    let foreign = wishes.find(|of| !of.value.is_empty() && !is_own(&of.value))?;
    let key = if settings.pool.is_empty() {
        "publish"
    } else {
        "pool"
    };
    let message = format!(
        "address {:?} is none of the balancer's; leave it out, or add it to {key} in [kubernetes.gateway]",
        foreign.value
    );
    Some(("AddressNotUsable", message))
}

/// Writes addresses as a status has them.
pub(crate) fn show_addresses(addresses: &[String]) -> Value {
    let addresses = addresses.iter().map(|address| {
        let kind = match address.parse::<IpAddr>() {
            Ok(_) => "IPAddress",
            Err(_) => "Hostname",
        };
        json!({ "type": kind, "value": address })
    });
    addresses.collect()
}

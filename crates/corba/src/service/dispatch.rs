//! From the name of an operation to what carries it out.

use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::cdr::Writer;
use evenkeel_giop::exception::Kind;
use evenkeel_giop::ior::Ior;

use super::load_manager::LoadManager;
use super::raise::Raise;
use crate::call::Call;
use crate::interfaces::Interface;
use crate::name::Name;
use crate::types::{Load, Properties};

/// Results of an operation; `None` if the operation is another one.
type Results = Result<Option<Vec<u8>>, Raise>;

/// No results.
fn none((): ()) -> Vec<u8> {
    Vec::new()
}

fn results(call: &Call, value: &dyn Fn(&mut Writer)) -> Vec<u8> {
    let mut results = call.results_writer();
    value(&mut results);
    results.into_bytes()
}

impl LoadManager {
    /// Carries out a call.
    pub(super) async fn dispatch(&self, call: &Call) -> Result<Vec<u8>, Raise> {
        if let Some(results) = self.dispatch_loads(call).await? {
            return Ok(results);
        }
        if let Some(results) = self.dispatch_members(call).await? {
            return Ok(results);
        }
        if let Some(results) = self.dispatch_properties(call).await? {
            return Ok(results);
        }
        if let Some(results) = self.dispatch_factory(call).await? {
            return Ok(results);
        }
        let results = self.dispatch_object(call)?;
        results.ok_or_else(|| Kind::BadOperation.into())
    }

    /// Carries out an operation of the generic factory.
    async fn dispatch_factory(&self, call: &Call) -> Results {
        let mut arguments = call.arguments();
        let from = &mut arguments;
        let one = |value: &dyn Fn(&mut Writer)| results(call, value);
        Ok(Some(match &*call.operation {
            "create_object" => {
                let (type_id, criteria) = (String::read(from)?, Properties::read(from)?);
                let (group, creation) = self.create_object(type_id, criteria).await?;
                one(&|w| {
                    group.write(w);
                    creation.write(w);
                })
            }
            "delete_object" => none(self.delete_object(&Any::read(from)?).await?),
            _ => return Ok(None),
        }))
    }

    /// Carries out an operation of the property manager.
    async fn dispatch_properties(&self, call: &Call) -> Results {
        let mut arguments = call.arguments();
        let from = &mut arguments;
        let one = |value: &dyn Fn(&mut Writer)| results(call, value);
        Ok(Some(match &*call.operation {
            "set_default_properties" => none(self.set_default_properties(&Vec::read(from)?).await?),
            "get_default_properties" => {
                let properties = self.get_default_properties();
                one(&|w| properties.write(w))
            }
            "remove_default_properties" => {
                none(self.remove_default_properties(&Vec::read(from)?).await?)
            }
            "set_type_properties" => {
                let (type_id, given) = (String::read(from)?, Vec::read(from)?);
                none(self.set_type_properties(type_id, &given).await?)
            }
            "get_type_properties" => {
                let properties = self.get_type_properties(&String::read(from)?);
                one(&|w| properties.write(w))
            }
            "remove_type_properties" => {
                let (type_id, names) = (String::read(from)?, Vec::read(from)?);
                none(self.remove_type_properties(&type_id, &names).await?)
            }
            "set_properties_dynamically" => {
                let (group, given) = (Ior::read(from)?, Vec::read(from)?);
                none(self.set_properties_dynamically(&group, &given).await?)
            }
            "get_properties" => {
                let properties = self.get_properties(&Ior::read(from)?)?;
                one(&|w| properties.write(w))
            }
            _ => return Ok(None),
        }))
    }

    /// Carries out an operation of the object group manager.
    async fn dispatch_members(&self, call: &Call) -> Results {
        let mut arguments = call.arguments();
        let from = &mut arguments;
        let one = |value: &dyn Fn(&mut Writer)| results(call, value);
        let object = |ior: Ior| results(call, &|w| ior.write(w));
        Ok(Some(match &*call.operation {
            "create_member" => {
                let (group, at) = (Ior::read(from)?, Name::read(from)?);
                let (type_id, criteria) = (String::read(from)?, Properties::read(from)?);
                object(self.create_member(&group, &at, type_id, criteria).await?)
            }
            "add_member" => {
                let (group, at, member) = (Ior::read(from)?, Name::read(from)?, Ior::read(from)?);
                object(self.add_member(&group, &at, member).await?)
            }
            "remove_member" => {
                let (group, at) = (Ior::read(from)?, Name::read(from)?);
                object(self.remove_member(&group, &at).await?)
            }
            "locations_of_members" => {
                let places = self.locations_of_members(&Ior::read(from)?)?;
                one(&|w| places.write(w))
            }
            "groups_at_location" => {
                let groups = self.groups_at_location(&Name::read(from)?)?;
                one(&|w| groups.write(w))
            }
            "get_object_group_id" => {
                let id = self.object_group_id(&Ior::read(from)?)?;
                one(&|w| w.write_u64(id))
            }
            "get_object_group_ref" => object(self.object_group_ref(&Ior::read(from)?)?),
            "get_object_group_ref_from_id" => {
                object(self.object_group_ref_from_id(from.read_u64()?)?)
            }
            "get_member_ref" => {
                let (group, at) = (Ior::read(from)?, Name::read(from)?);
                object(self.member_ref(&group, &at)?)
            }
            _ => return Ok(None),
        }))
    }

    /// Carries out an operation on loads, load alerts and load monitors.
    async fn dispatch_loads(&self, call: &Call) -> Results {
        let mut arguments = call.arguments();
        let from = &mut arguments;
        let one = |value: &dyn Fn(&mut Writer)| results(call, value);
        let object = |ior: Ior| results(call, &|w| ior.write(w));
        Ok(Some(match &*call.operation {
            "push_loads" => {
                let (at, loads) = (Name::read(from)?, Vec::<Load>::read(from)?);
                none(self.push_loads(&at, &loads)?)
            }
            "get_loads" => {
                let loads = self.get_loads(&Name::read(from)?)?;
                one(&|w| loads.write(w))
            }
            "enable_alert" => none(self.set_alert(&Name::read(from)?, true).await?),
            "disable_alert" => none(self.set_alert(&Name::read(from)?, false).await?),
            "register_load_alert" => {
                let (at, alert) = (Name::read(from)?, Ior::read(from)?);
                none(self.register_load_alert(&at, alert).await?)
            }
            "get_load_alert" => object(self.get_load_alert(&Name::read(from)?)?),
            "remove_load_alert" => none(self.remove_load_alert(&Name::read(from)?).await?),
            "register_load_monitor" => {
                let (at, monitor) = (Name::read(from)?, Ior::read(from)?);
                none(self.register_load_monitor(&at, monitor).await?)
            }
            "get_load_monitor" => object(self.get_load_monitor(&Name::read(from)?)?),
            "remove_load_monitor" => none(self.remove_load_monitor(&Name::read(from)?).await?),
            _ => return Ok(None),
        }))
    }

    /// Carries out an operation that each object has.
    fn dispatch_object(&self, call: &Call) -> Results {
        let one = |value: &dyn Fn(&mut Writer)| results(call, value);
        let object = |ior: Ior| results(call, &|w| ior.write(w));
        Ok(Some(match &*call.operation {
            "_is_a" => {
                let id = String::read(&mut call.arguments())?;
                one(&|w| w.write_bool(Interface::LoadManager.is_a(&id)))
            }
            // The second name is that of GIOP 1.0.
            "_non_existent" | "_not_existent" => one(&|w| w.write_bool(false)),
            "_repository_id" => {
                let id = Interface::LoadManager.id(&self.settings().repository_prefix);
                one(&|w| id.write(w))
            }
            // There is no interface repository, and it is no component.
            "_interface" => return Err(Kind::IntfRepos.into()),
            "_component" => object(Ior::default()),
            _ => return Ok(None),
        }))
    }
}

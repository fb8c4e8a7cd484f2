//! Recipes: named sets of settings, as TOML, below everything that the user gives.
//!
//! A recipe has the keys of a configuration file, and two of its own: `version`, a whole number, and `extends`, the name or the file of
//! another recipe, whose values it replaces. A file is named with its ending `.toml`; one that another file extends is relative to that.

use std::path::{Path, PathBuf};

use super::layers::{settings_of, table};
use super::{ConfigError, Setting};

/// The recipes of the program, by their names.
pub const RECIPES: &[(&str, &str)] = &[
    ("fine-tune", include_str!("recipes/fine-tune.toml")),
    ("airbench94", include_str!("recipes/airbench94.toml")),
    ("airbench95", include_str!("recipes/airbench95.toml")),
    ("mnist", include_str!("recipes/mnist.toml")),
    ("fashion-mnist", include_str!("recipes/fashion-mnist.toml")),
];

/// The values of one recipe, without those of the one that it extends.
pub(super) struct Recipe {
    /// The file, or the name with the version: `fine-tune@1`.
    pub label: String,
    pub settings: Vec<(&'static Setting, String)>,
}

/// Where the text of a recipe is.
#[derive(Clone, PartialEq)]
enum Place {
    BuiltIn(&'static str, &'static str),
    File(PathBuf),
}

impl Place {
    /// The place of a recipe that is named in `folder`.
    fn find(name: &str, folder: &Path) -> Result<Self, ConfigError> {
        if name.ends_with(".toml") {
            let path = enmasse_system::files::expand_home(Path::new(name)).map_err(|error| refuse(name, error))?;
            return Ok(Place::File(folder.join(path)));
        }
        let known = RECIPES.iter().find(|(known, _)| *known == name);
        let names = || RECIPES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let unknown = || refuse(name, format!("there is no such recipe; use {}, or a file NAME.toml", names()));
        known.map(|(name, text)| Place::BuiltIn(name, text)).ok_or_else(unknown)
    }

    fn name(&self) -> String {
        match self {
            Place::BuiltIn(name, _) => (*name).to_owned(),
            Place::File(path) => path.display().to_string(),
        }
    }

    fn text(&self) -> Result<String, ConfigError> {
        match self {
            Place::BuiltIn(_, text) => Ok((*text).to_owned()),
            Place::File(path) => enmasse_system::files::read_text(path)
                .map_err(|error| refuse(&self.name(), format!("cannot read the recipe: {error}"))),
        }
    }

    /// The folder of a file.
    fn folder(&self) -> &Path {
        match self {
            Place::BuiltIn(..) => Path::new(""),
            Place::File(path) => path.parent().unwrap_or(Path::new("")),
        }
    }
}

fn refuse(name: &str, reason: impl ToString) -> ConfigError {
    ConfigError::File { path: format!("recipe {name}"), reason: reason.to_string() }
}

/// The recipe with this name, or in this file, after those that it extends.
pub(super) fn read(name: &str) -> Result<Vec<Recipe>, ConfigError> {
    let mut places: Vec<Place> = Vec::new();
    let mut recipes = Vec::new();
    let mut next = Some(Place::find(name, Path::new(""))?);
    while let Some(place) = next.take() {
        let name = place.name();
        if places.contains(&place) {
            let chain: Vec<String> = places.iter().chain([&place]).map(Place::name).collect();
            return Err(refuse(&name, format!("it extends itself: {}", chain.join(" extends "))));
        }
        let mut table = table(&place.text()?, &name)?;
        let version = match table.remove("version") {
            None => None,
            Some(toml::Value::Integer(version)) => Some(version),
            Some(_) => return Err(refuse(&name, "version must be a whole number")),
        };
        next = match table.remove("extends") {
            None => None,
            Some(toml::Value::String(base)) => Some(Place::find(&base, place.folder())?),
            Some(_) => return Err(refuse(&name, "extends must be the name or the file of a recipe")),
        };
        let settings = settings_of(&table, &name)?;
        if settings.iter().any(|(setting, _)| setting.name == "recipe") {
            return Err(refuse(&name, "a recipe names another one by extends"));
        }
        let label = version.map_or_else(|| name.clone(), |version| format!("{name}@{version}"));
        recipes.push(Recipe { label, settings });
        places.push(place);
    }
    recipes.reverse();
    Ok(recipes)
}

// The image of one service: a rule with all that it refers to, from a file into the configuration.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Diffed } from "../types";
import { Icon } from "../ui/icons";
import { ApplyDialog } from "./apply";
import { asked, type Choice, importOf } from "./choices";
import { wordsOf } from "./draft";

export function ImportDialog({ text, onClose }: { text: string; onClose: () => void }): JSX.Element {
  const [choices, setChoices] = useState<Record<string, Choice>>({});
  return <ApplyDialog draft={{ import: importOf(text, choices) }} title="Import this rule?" onClose={onClose} onDone={() => undefined} more={(diff) => <Tables diff={diff} choices={choices} onChange={setChoices} />} />;
}

/** A name that counts when it is whole: each is compared by the balancer, whose answers come while one types. */
function NewName({ path, onName }: { path: string; onName: (name: string) => void }): JSX.Element {
  const [name, setName] = useState("");
  return <input type="text" aria-label={`New name of ${path}`} value={name} spellcheck={false} autocomplete="off" onInput={(event) => setName(event.currentTarget.value)} onChange={() => onName(name.trim())} />;
}

function Tables({ diff, choices, onChange }: { diff: Diffed; choices: Record<string, Choice>; onChange: (choices: Record<string, Choice>) => void }): JSX.Element | null {
  const outcome = diff.import;
  if (!outcome) return null;
  const open = asked(outcome.clashes, choices);
  const set = (path: string, choice: Choice | null) => {
    const { [path]: _, ...others } = choices;
    onChange(choice ? { ...others, [path]: choice } : others);
  };
  const line = (label: string, tables: string[]) => tables.length > 0 && <li>{label}: {tables.map((table, i) => <span key={table}>{i > 0 && ", "}<code>{table}</code></span>)}</li>;
  return (
    <>
      <ul class="problems image-tables" aria-label="Tables of the image">
        {line("New here", outcome.added)}
        {line("The same as here", outcome.unchanged)}
        {line("Replace the table here", outcome.replaced)}
        {line("Differ from the table here", outcome.clashes)}
      </ul>
      {open.map((path) => {
        const choice = choices[path];
        return (
          <div class="field" key={path}>
            <label class="name" for={`image-${path}`}>{path}</label>
            <div class="control">
              <select id={`image-${path}`} value={choice?.how ?? ""} onChange={(event) => {
                const how = event.currentTarget.value;
                set(path, how === "replace" ? { how } : how === "rename" ? { how, to: "" } : null);
              }}>
                <option value="">differs: not imported</option>
                <option value="replace">replaces the table here</option>
                {!path.startsWith("location.") && <option value="rename">gets another name</option>}
              </select>
              {choice?.how === "rename" && <NewName path={path} onName={(to) => set(path, { how: "rename", to })} />}
            </div>
          </div>
        );
      })}
      {(diff.warnings ?? []).map((warning) => <p class="banner warn" key={wordsOf(warning)}><Icon name="warn" />{wordsOf(warning)}</p>)}
    </>
  );
}

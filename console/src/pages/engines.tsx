// Engines for language models: tokens that the members of a group read and write, and times in which tokens come.

import type { JSX } from "preact";
import { ms, percent, rate, short } from "../format";
import type { EngineFigures, Group } from "../types";
import { Gauge, Panel, Scroll } from "../ui/kit";

const HEADS = ["Prompts, tokens", "Answers, tokens", "Cache hits", "First token p50", "First token p90", "Between tokens p50", "Between tokens p90", "Queued tokens", "Queued elsewhere", "Without a first token", "Streams"];

/** Engines of a group with the strategy `inference`; nothing for other groups. */
export function Engines({ group }: { group: Group }): JSX.Element | null {
  if (!group.engines) return null;
  return (
    <Panel title="Engines" live>
      <Scroll label="Engines">
        <table>
          <thead><tr><th scope="col">Member</th>{HEADS.map((head) => <th key={head} scope="col" class="num">{head}</th>)}</tr></thead>
          <tbody>
            <Row name="all members" engine={group.engines} />
            {group.members.map((member) => member.engine && <Row key={member.name} name={member.name} engine={member.engine} />)}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Row({ name, engine }: { name: string; engine: EngineFigures }): JSX.Element {
  return (
    <tr>
      <th scope="row" class="nowrap">{name}</th>
      <td class="num">{rate(engine.prompt_tokens_per_second)}</td>
      <td class="num">{rate(engine.output_tokens_per_second)}</td>
      <td class="num">{engine.cache_hit_rate !== null && <Gauge value={engine.cache_hit_rate} />} {percent(engine.cache_hit_rate)}</td>
      <td class="num">{ms(engine.first_token_p50_ms)}</td>
      <td class="num">{ms(engine.first_token_p90_ms)}</td>
      <td class="num">{ms(engine.between_tokens_p50_ms)}</td>
      <td class="num">{ms(engine.between_tokens_p90_ms)}</td>
      <td class="num">{short(Math.round(engine.queued_tokens))}</td>
      <td class="num">{short(Math.round(engine.queued_tokens_elsewhere))}</td>
      <td class="num">{engine.queued_requests}</td>
      <td class="num">{engine.streams}</td>
    </tr>
  );
}

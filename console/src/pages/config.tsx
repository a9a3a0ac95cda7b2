import type { JSX } from "preact";
import { Loading } from "../ui/kit";
export function ConfigPage(): JSX.Element {
  return <Loading />;
}

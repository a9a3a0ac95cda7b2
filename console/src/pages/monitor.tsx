import type { JSX } from "preact";
import { Loading } from "../ui/kit";
export function MonitorPage(): JSX.Element {
  return <Loading />;
}

import { render } from "preact";
import { App, begin } from "./app";
import "uplot/dist/uPlot.min.css";
import "./style.css";

render(<App />, document.getElementById("app")!);
void begin();

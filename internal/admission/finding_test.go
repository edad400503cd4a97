package admission

import "testing"

// GitHub reads the escapes of a workflow command, and shows the annotation at the line of the file.
func TestAnnotation(t *testing.T) {
	for want, finding := range map[string]Finding{
		"::error file=a%2Cb%3A.yaml,line=7::Cluster team/prod: spec: 100%25%0Awrong": {File: "a,b:.yaml", Line: 7, Kind: "Cluster", Namespace: "team", Name: "prod", Path: "spec", Message: "100%\nwrong", Severity: SeverityError},
		"::warning file=a.yaml::is not there":                                        {File: "a.yaml", Message: "is not there", Severity: SeverityWarning},
		"::error::document 2: no":                                                    {File: "-", Line: 3, Message: "document 2: no", Severity: SeverityError},
	} {
		if got := finding.Annotation(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

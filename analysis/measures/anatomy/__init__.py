"""Where does a batch's time go, collective by collective and part by part?"""
